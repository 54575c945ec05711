"""What `srt/models/*.py` says of one architecture: its classes, its layers, and the contracts that they keep."""
