"""The report as data, and its formats. Nothing here reads SGLang or asks a rule."""
