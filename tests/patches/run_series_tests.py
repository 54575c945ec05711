"""Run upstream-style unittest files in one process and print {"passed": [...], "failed": [...]} as the last line.

Started by tools/patches.py with PYTHONPATH on one SGLang tree; a file that cannot be imported counts as failed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import unittest
from pathlib import Path


class Recorder(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.passed: list[str] = []

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        self.passed.append(test.id())


def load(path: Path) -> unittest.TestSuite:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def main(files: list[str]) -> int:
    recorder, broken = Recorder(), []
    for name in files:
        try:
            suite = load(Path(name))
        except Exception as error:  # noqa: BLE001 - a file that cannot be loaded is a failure of that file
            broken.append(f"{Path(name).name}: {type(error).__name__}: {error}")
            continue
        suite.run(recorder)
    failed = [*recorder.failures, *recorder.errors]
    for test, trace in failed:
        print(f"{test.id()}\n{trace}", file=sys.stderr)
    names = sorted({test.id().split(" ")[0] for test, _ in failed})
    print(json.dumps({"passed": recorder.passed, "failed": [*broken, *names]}))
    return 1 if broken or failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
