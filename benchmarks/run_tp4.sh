#!/usr/bin/env bash
# Everything that needs four GPUs of one host, once: run_tp4.sh OUT [SITE]
#
# OUT gets JSONL files for benchmarks/results and logs; SITE is a folder made by offline_host/install.py, or leave it out
# where SGLang is installed. A step that fails does not stop the next ones; each has a time limit. About 25 minutes on
# four H200s by estimate (two took 7 minutes for steps 1 and 5); Blackwell machines run the same.
#
# NVLink multicast stays off (the three variables below), because a program that dies while it uses it can take the GPUs
# of a shared host out of service. Step 4 measures FlashInfer's all-reduce fusion, some of whose kernels need multicast:
# it runs only with FUSION=1, on a machine of your own.
set -uo pipefail
out=$(realpath -m "${1:?usage: run_tp4.sh OUT [SITE]}")
cd "$(dirname "$0")/.."
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 PYTHONPATH="${2:+$(realpath "$2"):}$PWD${PYTHONPATH:+:$PYTHONPATH}"
export SGLANG_GUARDS_RESULTS=$out
mkdir -p "$out"
site=$(python3 -c 'import pathlib, sglang; print(pathlib.Path(sglang.__path__[0]).parent)')
version=$(python3 -c 'import sglang; print(sglang.__version__)')
day=$(date -u +%F)
gpus=$(nvidia-smi -L | wc -l)
name=$day-tp4
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv | tee "$out/device.log"
if ((gpus < 4)); then echo "needs 4 GPUs, $gpus visible"; exit 1; fi

step() { # step NAME SECONDS COMMAND...
  local title=$1 limit=$2; shift 2
  echo "== $title"
  timeout "$limit" "$@" > "$out/$title.log" 2>&1 || echo "   exit $? (see $title.log)"
  tail -n 12 "$out/$title.log"
}

series=$(mktemp -d)/tree
python3 benchmarks/patched_tree.py "$site" "$series" "$version" > "$out/series.log" 2>&1 || echo "no series for $version"

# 1. Integration: guards on and off, expert parallelism as installed (dies), guarded (refused), patched (right).
step integration 600 python3 -m pytest -q -p no:cacheprovider tests/gpu -m "tp4 or tp2" --timeout 590

# 2. One GPU's truth on this kind of GPU, and the layer benchmark of a few shards (Blackwell has no such figures yet).
step kernel-truth 400 python3 -m pytest -q -p no:cacheprovider tests/gpu -m "gpu and not tp2 and not tp4"
step layer 420 python3 benchmarks/bench_fused_moe_sum.py --only Qwen3-235B-A22B-tp4 Qwen3.5-122B-A10B-tp4 \
  --compile-processes 16 --seconds 380 --out "$out/$name-fused-moe-sum.jsonl"

# 3. Hybrid EP 2 × TP 4 with all-reduce fusion, where the reduction spans the wrong group (0.5.11 to 0.5.17): needs the
#    fusion kernels, so it belongs to step 4. Without them: the same layout, fused sum guarded and patched.
step hybrid 420 python3 benchmarks/e2e.py --tp 4 --rounds 0 --timeout 130 --engine-args '{"ep_size": 2}' \
  --arms ep-off ep-guarded ep-series --series-tree "$series" --out "$out/$name-hybrid-e2e.jsonl"

# 4. All-reduce fusion off, by SGLang's list, by the extended list; hybrid EP 2 × TP 4 with it.
if [[ ${FUSION:-0} == 1 ]]; then
  unset NCCL_NVLS_ENABLE TORCH_SYMM_MEM_DISABLE_MULTICAST NVSHMEM_DISABLE_NVLS
  step fusion-listed 600 python3 benchmarks/e2e.py --tp 4 --dimensions Qwen3-30B-A3B --timeout 190 \
    --arms fusion-off fusion-auto fusion-extended --out "$out/$name-fusion-e2e.jsonl"
  # Newly listed architectures: FUSION_MODELS names folders with their config.json (weights are dummies).
  for model in ${FUSION_MODELS:-}; do
    step "fusion-$(basename "$model")" 600 python3 benchmarks/e2e.py --tp 4 --model "$model" --timeout 190 \
      --engine-args '{"load_format": "dummy"}' \
      --arms fusion-off fusion-auto fusion-extended --out "$out/$name-fusion-e2e.jsonl"
  done
  step hybrid-fusion 420 python3 benchmarks/e2e.py --tp 4 --rounds 0 --timeout 190 --engine-args '{"ep_size": 2}' \
    --arms fusion-off fusion-auto fusion-extended --out "$out/$name-hybrid-fusion-e2e.jsonl"
  export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
else
  echo "== fusion: left out; FUSION=1 runs it on a machine of your own"
fi

# 5. End to end at TP 4: the fused sum off, as shipped, hotfix, series, and the guards alone.
step e2e 700 python3 benchmarks/e2e.py --tp 4 --dimensions Qwen3-235B-A22B --layers 12 --timeout 140 \
  --arms off on hotfix series guards --series-tree "$series" --out "$out/$name-e2e.jsonl"

echo "results in $out: copy the JSONL files to benchmarks/results and run python benchmarks/report.py"
