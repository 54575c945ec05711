"""Stand-in for the CUDA package: SGLang asks whether it can be found."""
