#!/usr/bin/env bash
# Sets everything up on a machine without a GPU and passes the tests:
#
#   tools/test.sh [pytest arguments]          all of them (what CI runs)
#   tools/test.sh --fast [pytest arguments]   the edit loop: one release of SGLang, under three minutes
#
# The slow ones (every release in every test) are left to `nox -s matrix`.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --fast ]; then tools/env.sh 0.5.15; else tools/env.sh --all; fi
exec "${SGLANG_GUARDS_VENV:-.venv}/bin/python" -m pytest -n "${SGLANG_GUARDS_JOBS:-2}" --dist loadgroup -m "not slow" "$@"
