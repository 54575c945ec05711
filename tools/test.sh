#!/usr/bin/env bash
# Sets everything up on a machine without a GPU and passes the tests: tools/test.sh [pytest arguments]
# The slow ones (every release in every test) are left to `nox -s matrix`.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/env.sh --all
exec "${SGLANG_GUARDS_VENV:-.venv}/bin/python" -m pytest -n "${SGLANG_GUARDS_JOBS:-2}" --dist loadfile -m "not slow" "$@"
