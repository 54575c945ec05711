"""The verdict table: what was requested of each flag, and what this SGLang does with it."""
