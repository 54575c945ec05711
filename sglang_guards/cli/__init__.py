"""The `sglang-guards` command."""
