"""GPUs that a check can pretend to run on: the table behind ``--gpu 4xH200``, and this machine's own (``auto``)."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sglang_guards.errors import CouldNotCheck


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU and how many of them a node has.

    `sm` is the compute capability without the dot (90 for 9.0), None on ROCm; `arch` is the gfx name there.
    `memory_gib` is what the driver reports, in GiB. `measured` is True for GPUs found on this machine.
    """

    platform: str
    name: str
    sm: int | None
    count: int
    memory_gib: float
    units: int
    arch: str = ""
    measured: bool = False

    @property
    def short(self) -> str:
        """``4 × RTX PRO 6000 (SM120)``."""
        name = self.name
        for word in ("NVIDIA ", "AMD Instinct ", "AMD ", " Blackwell Server Edition", " HBM3"):
            name = name.replace(word, "")
        return f"{self.count} × {name} ({f'SM{self.sm}' if self.sm else self.arch})"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form that the resolver takes."""
        return asdict(self)


def _cuda(name: str, sm: int, mib: int, units: int) -> Gpu:
    return Gpu("cuda", f"NVIDIA {name}", sm, 1, round(mib / 1024, 1), units)


def _hip(name: str, arch: str, gib: int, units: int) -> Gpu:
    return Gpu("hip", f"AMD {name}", None, 1, float(gib), units, arch)


#: Key as typed (see `_key`) -> GPU. Name, memory (MiB, GiB on ROCm) and SM or CU count as the drivers report them.
TABLE: Mapping[str, Gpu] = {
    "T4": _cuda("T4", 75, 15360, 40),
    "V100": _cuda("V100-SXM2-32GB", 70, 32768, 80),
    "A100": _cuda("A100-SXM4-80GB", 80, 81920, 108),
    "A10040GB": _cuda("A100-SXM4-40GB", 80, 40960, 108),
    "A10": _cuda("A10", 86, 23028, 72),
    "A10G": _cuda("A10G", 86, 23028, 80),
    "A40": _cuda("A40", 86, 46068, 84),
    "RTX3090": _cuda("GeForce RTX 3090", 86, 24576, 82),
    "L4": _cuda("L4", 89, 23034, 58),
    "L40": _cuda("L40", 89, 46068, 142),
    "L40S": _cuda("L40S", 89, 46068, 142),
    "RTX4090": _cuda("GeForce RTX 4090", 89, 24564, 128),
    "RTX6000ADA": _cuda("RTX 6000 Ada Generation", 89, 49140, 142),
    "H100": _cuda("H100 80GB HBM3", 90, 81559, 132),
    "H100PCIE": _cuda("H100 PCIe", 90, 81559, 114),
    "H100NVL": _cuda("H100 NVL", 90, 95830, 132),
    "H800": _cuda("H800", 90, 81559, 132),
    "H200": _cuda("H200", 90, 143771, 132),
    "H20": _cuda("H20", 90, 97871, 78),
    "H203E": _cuda("H20-3e", 90, 143771, 78),
    "GH200": _cuda("GH200 480GB", 90, 97871, 132),
    "B200": _cuda("B200", 100, 183359, 148),
    "GB200": _cuda("GB200", 100, 189471, 152),
    "B300": _cuda("B300 SXM6 AC", 103, 275040, 148),
    "GB300": _cuda("GB300", 103, 284208, 152),
    "THOR": _cuda("Thor", 110, 125772, 20),
    "RTXPRO6000": _cuda("RTX PRO 6000 Blackwell Server Edition", 120, 97887, 188),
    "RTXPRO5000": _cuda("RTX PRO 5000 Blackwell", 120, 48935, 110),
    "RTX5090": _cuda("GeForce RTX 5090", 120, 32607, 170),
    "RTX5080": _cuda("GeForce RTX 5080", 120, 16303, 84),
    "GB10": _cuda("GB10", 121, 122502, 48),
    "MI210": _hip("Instinct MI210", "gfx90a", 64, 104),
    "MI250X": _hip("Instinct MI250X", "gfx90a", 64, 110),
    "MI300X": _hip("Instinct MI300X", "gfx942", 192, 304),
    "MI308X": _hip("Instinct MI308X", "gfx942", 192, 80),
    "MI325X": _hip("Instinct MI325X", "gfx942", 256, 304),
    "MI350X": _hip("Instinct MI350X", "gfx950", 288, 256),
    "MI355X": _hip("Instinct MI355X", "gfx950", 288, 256),
    "R9700": _hip("Radeon AI PRO R9700", "gfx1201", 32, 64),
}
_ALIASES = {
    "A10080GB": "A100",
    "H10080GB": "H100",
    "H100SXM": "H100",
    "H20141GB": "H203E",
    "H2096GB": "H20",
    "RTXPRO6000BLACKWELL": "RTXPRO6000",
    "RTXPRO6000BLACKWELLSERVEREDITION": "RTXPRO6000",
    "PRO6000": "RTXPRO6000",
    "5090": "RTX5090",
    "4090": "RTX4090",
    "3090": "RTX3090",
    "DGXSPARK": "GB10",
}
_SPELLED = {
    "A10040GB": "A100-40GB",
    "H100PCIE": "H100-PCIe",
    "H100NVL": "H100-NVL",
    "H203E": "H20-3e",
    "THOR": "Thor",
    "RTX6000ADA": "RTX-6000-Ada",
}
#: More than a rack holds (72) is a typing error.
_MOST = 128


def _key(name: str) -> str:
    key = re.sub(r"[\s_-]+", "", name).upper()
    for word in ("NVIDIA", "AMD", "INSTINCT", "GEFORCE", "RADEON"):
        key = key.removeprefix(word)
    return _ALIASES.get(key, key)


def parse(text: str) -> Gpu:
    """``4xRTX-PRO-6000`` -> Gpu; raises `CouldNotCheck` when the text or the name is not known."""
    match = re.fullmatch(r"\s*(\d+)\s*[x×*]\s*(\S.*?)\s*", text, re.IGNORECASE)
    if match is None:
        name = spelled(_key(text)) if _key(text) in TABLE else "H200"
        raise CouldNotCheck(
            f"--gpu {text!r} is not of the form COUNTxNAME",
            f"write how many one node has, such as --gpu 8x{name}",
        )
    count, key = int(match[1]), _key(match[2])
    if re.match(r"\d+\s*[x×*]", match[2]):
        raise CouldNotCheck(
            f"--gpu {text!r} counts twice",
            "give the GPUs of one node; --nnodes in the launch says how many nodes",
        )
    if not 1 <= count <= _MOST:
        raise CouldNotCheck(f"--gpu {text!r} asks for {count} GPUs per node", f"give 1 to {_MOST}")
    if key not in TABLE:
        near = [spelled(name) for name in difflib.get_close_matches(key, TABLE, n=3)]
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        known = ", ".join(spelled(name) for name in TABLE)
        raise CouldNotCheck(f"--gpu names an unknown GPU {match[2]!r}", f"{hint}known: {known}")
    return _counted(TABLE[key], count)


def spelled(key: str) -> str:
    """A key of the table as people write it: RTXPRO6000 -> RTX-PRO-6000."""
    return _SPELLED.get(
        key, re.sub(r"^RTX(PRO)?(\d+)", lambda m: "RTX-" + ("PRO-" if m[1] else "") + m[2], key)
    )


def _counted(gpu: Gpu, count: int, **changes: Any) -> Gpu:
    return Gpu(**{**asdict(gpu), "count": count, **changes})


def detect() -> Gpu:
    """The GPUs of this machine (the first one's kind); raises `CouldNotCheck` where none is visible."""
    gpu = _from_nvidia_smi() or _from_torch()
    if gpu is None:
        raise CouldNotCheck(
            "no GPU is visible on this machine",
            "name the machine that the launch is for, such as --gpu 8xH200",
        )
    return gpu


def _from_nvidia_smi() -> Gpu | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = "--query-gpu=index,uuid,name,compute_cap,memory.total"
    try:
        done = subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        wanted = [v.strip() for v in visible.split(",") if v.strip()]
        rows = [
            row for row in rows if row[0] in wanted or any(row[1].startswith(w) for w in wanted if len(w) > 3)
        ]
    try:
        _, _, name, capability, mib = rows[0]
        major, minor = (int(part) for part in capability.split("."))
        memory = float(mib)
    except (IndexError, ValueError):  # no row, or unified memory shown as [N/A]
        return None
    known = TABLE.get(_key(name))
    units = known.units if known else next((g.units for g in TABLE.values() if g.name == name), 100)
    return Gpu("cuda", name, major * 10 + minor, len(rows), round(memory / 1024, 1), units, measured=True)


_ASK_TORCH = """
import json, torch
n = torch.cuda.device_count() if torch.cuda.is_available() else 0
if n:
    p = torch.cuda.get_device_properties(0)
    print(json.dumps([n, p.name, p.major, p.minor, p.total_memory, p.multi_processor_count,
                      torch.version.hip is not None, getattr(p, "gcnArchName", "").split(":")[0]]))
"""


def _from_torch() -> Gpu | None:
    if not any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return None  # importing torch takes seconds; without a driver there is nothing to ask
    try:
        done = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=120)
        count, name, major, minor, memory, units, hip, arch = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    platform, sm = ("hip", None) if hip else ("cuda", major * 10 + minor)
    return Gpu(platform, name, sm, count, round(memory / 2**30, 1), units, arch if hip else "", measured=True)
