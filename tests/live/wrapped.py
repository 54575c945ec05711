"""Resolve one launch on a SGLang without plugins, with the auto-enable step wrapped around its method by hand."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main(gpu: str, model: str) -> None:
    from sglang_guards.hook import auto_enable
    from sglang_guards.launch import gpus
    from sglang_guards.preflight import simulated_gpu

    tools = Path(tempfile.mkdtemp(prefix="sglang-guards-tools-"))
    simulated_gpu.write_tools(tools)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
    simulated_gpu.hide()
    simulated_gpu.warm_up()
    simulated_gpu.strike(gpus.parse(gpu))
    from sglang.srt.server_args import ServerArgs

    seen: dict[str, Any] = {"log": []}

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen["log"].append(record.getMessage())

    logging.getLogger("sglang_guards").addHandler(Collect())
    logging.getLogger("sglang_guards").setLevel(logging.INFO)
    original = ServerArgs._handle_model_specific_adjustments

    def wrapped(self: Any) -> None:
        original(self)
        seen["before"] = self.enable_flashinfer_allreduce_fusion
        auto_enable.after_model_adjustments(self)

    ServerArgs._handle_model_specific_adjustments = wrapped
    seen["after"] = ServerArgs(model_path=model, tp_size=4).enable_flashinfer_allreduce_fusion
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
