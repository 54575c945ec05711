#!/usr/bin/env bash
# Sets everything up on a machine without a GPU and checks the shipped example launch against real SGLang 0.5.15.
set -euo pipefail
cd "$(dirname "$0")/.."
release=${1:-0.5.15}
tools/env.sh "$release"
venv=$(realpath "${SGLANG_GUARDS_VENV:-.venv}")
trees=${SGLANG_GUARDS_TREES:-$HOME/.cache/sglang-guards/trees}
example=examples/qwen3.5-122b-rtx-pro-6000
command=$(sed -e '/^#/d' -e 's/^exec //' -e 's/\\$//' "$example/launch.sh" | tr '\n' ' ')
# shellcheck disable=SC2086  # the command is words
PYTHONPATH="$trees/$release" "$venv/bin/sglang-guards" check -v --gpu 4xRTX-PRO-6000 --model-config "$example" -- $command
