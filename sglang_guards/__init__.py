"""Guards for SGLang launches: a start-up hook and a preflight command for flag combinations that harm."""

__version__ = "0.1.0"
