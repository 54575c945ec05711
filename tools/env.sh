#!/usr/bin/env bash
# Makes the environment that everything here runs in: tools/env.sh [RELEASE…]
#
#   .venv (or $SGLANG_GUARDS_VENV)   CPU torch, what SGLang imports, the project itself (editable) with its dev tools
#   ~/.cache/sglang-guards/trees     one unpacked SGLang wheel per RELEASE (or $SGLANG_GUARDS_TREES)
#
# Needs Python 3.11, for which the pinned set was made. Safe to run again: what is there is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${SGLANG_GUARDS_VENV:-.venv}
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "tools/env.sh: Python 3.11 is needed (the pinned set was made for it); set PYTHON=/path/to/python3.11" >&2
  exit 2
}
stamp=$(cat requirements/*.txt pyproject.toml tools/env.sh | cksum | tr ' ' '-')
if [ ! -e "$venv/.ready-$stamp" ]; then
  echo "[env] $venv: virtual environment"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  pip=("$venv/bin/python" -m pip --disable-pip-version-check -q)
  echo "[env] torch (CPU build) and what SGLang imports"
  # The +cpu pin keeps a CUDA build of several GB out; where pip's index has no CPU build, PyTorch's own index does.
  "${pip[@]}" install "$(grep '^torch==' requirements/sglang-cpu.txt)" 2>/dev/null ||
    "${pip[@]}" install --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' requirements/sglang-cpu.txt)"
  "${pip[@]}" install -r requirements/sglang-cpu.txt
  "${pip[@]}" install --no-deps -r requirements/sglang-cpu-nodeps.txt
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp tools/site/torchvision_beside_cpu_torch.py "$site/"
  echo 'import torchvision_beside_cpu_torch' > "$site/torchvision_beside_cpu_torch.pth"
  echo "[env] the project and its tools"
  "${pip[@]}" install -e '.[dev,docs]'
  touch "$venv/.ready-$stamp"
fi
[ $# -eq 0 ] || "$venv/bin/python" tools/trees.py "$@"
echo "[env] ready: $venv"
