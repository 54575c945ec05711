#!/usr/bin/env bash
# The step of action.yml that checks. Everything comes in as variables: SGLANG_GUARDS_VENV SGLANG GPU FAIL_ON, and LAUNCH
# MODEL_CONFIG LAUNCH_FILE SARIF where given. Exit code: that of the check.
set -euo pipefail
trees=${SGLANG_GUARDS_TREES:-$HOME/.cache/sglang-guards/trees}
export PYTHONPATH="$trees/$SGLANG${PYTHONPATH:+:$PYTHONPATH}"
check() {
  "$SGLANG_GUARDS_VENV/bin/python" -m sglang_guards check --gpu "$GPU" --fail-on "$FAIL_ON" --format "$1" \
    ${MODEL_CONFIG:+--model-config "$MODEL_CONFIG"} ${LAUNCH_FILE:+--launch-file "$LAUNCH_FILE"} ${LAUNCH:+--} ${LAUNCH:+"$LAUNCH"}
}
if [ -n "${SARIF:-}" ]; then
  check sarif > "$SARIF" || true # the check below decides
fi
check github
