"""Names that SGLang imports; nothing here is ever called before a model runs."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args, **kwargs):
        raise RuntimeError(f"sgl_kernel.kvcacheio.{name} needs a GPU build")

    return absent
