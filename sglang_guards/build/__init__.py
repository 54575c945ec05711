"""The model as SGLang itself would build it, on torch's meta device, as one rank of the launch would."""
