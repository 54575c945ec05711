"""Stand-in for the CUDA package: releases up to 0.5.12.post1 import its KV-cache functions on CPU machines too."""
