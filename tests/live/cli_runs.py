"""Run many command lines of sglang-guards in one process: JSON in (argument lists), JSON out (code, stdout, stderr)."""

from __future__ import annotations

import contextlib
import io
import json
import sys

from sglang_guards.cli.main import main

if __name__ == "__main__":
    answers = []
    for words in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
        answers.append([code, out.getvalue(), err.getvalue()])
    json.dump(answers, sys.stdout)
