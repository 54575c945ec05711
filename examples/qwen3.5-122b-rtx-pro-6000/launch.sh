#!/bin/sh
# The launch that started sglang-guards: 4 x RTX PRO 6000, SGLang 0.5.15.
exec python -m sglang.launch_server \
  --model-path Qwen/Qwen3.5-122B-A10B-FP8 \
  --tp 4 \
  --attention-backend triton \
  --speculative-algorithm NEXTN \
  --speculative-num-steps 3 \
  --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 4 \
  --enable-fused-moe-sum-all-reduce
