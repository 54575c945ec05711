"""Lets the CUDA wheel of torchvision be imported beside a CPU build of torch (for the tests' environment only).

Its Python side registers fake kernels for operators that only its C++ library declares, and that library cannot load
without CUDA. Declaring the two operators just before torchvision is imported is enough; no vision operator is run.
"""

import sys

_OPERATORS = ("nms", "qnms")


class _DeclareOperators:  # a finder needs no base class, and importlib.abc would cost every interpreter
    library = None

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - importlib's signature
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if not torch.backends.cuda.is_built():
                type(self).library = torch.library.Library("torchvision", "DEF")
                for operator in _OPERATORS:
                    self.library.define(
                        f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    )
        return None


sys.meta_path.insert(0, _DeclareOperators())
