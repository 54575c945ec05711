"""Which tuned tiles a release ships for the Triton experts."""

from __future__ import annotations

from sglang_guards.source.tree import Answer, Source, Unknown, decided, probe

#: Where releases keep the files, newest first: below it `triton_<version>/<name>.json`.
_FOLDERS = (
    "sglang/srt/layers/moe/moe_runner/triton_utils/configs",
    "sglang/srt/layers/moe/fused_moe_triton/configs",
)


@probe("tile_file_ships", "A tile file of this name is shipped, for any version of Triton. Argument: file.")
def tile_file_ships(source: Source, *, file: str) -> Answer:
    folder = next((folder for folder in _FOLDERS if source.files(folder, "triton_*/E=*.json")), None)
    if folder is None:
        raise Unknown("the folder of tile files was not found")
    shipped = source.files(folder, f"triton_*/{file.replace('[', '[[]')}")
    return decided(yes=shipped[0] if shipped else None, no=None if shipped else folder)
