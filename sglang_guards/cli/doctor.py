"""``sglang-guards doctor``: prove in a fresh interpreter that the start-up hook fires, and which way in is active."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang_guards import __version__, settings, source
from sglang_guards.errors import CouldNotCheck
from sglang_guards.legacy import PTH_NAME
from sglang_guards.source.applied_patches import applied_patches

GROUP = "sglang.srt.plugins"
ENTRY = "sglang_guards"
#: SGLang's import takes 4 to 6 s on a small machine, more on a cold disk.
_TIMEOUT_S = 180
_WRAPPER = "python -m sglang_guards.launch_server"

#: A dense model that every release knows, small enough for any machine.
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "vocab_size": 1024,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
#: What `python -m sglang.launch_server` does, on the CPU, up to its first worker. Where the launcher cannot be gone
#: so far (`reached` false), the wrapped method is called by itself.
_CANARY = """
import json, logging, multiprocessing.process, sys
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s", stream=sys.stderr)

class Worker(SystemExit):
    pass

start = multiprocessing.process.BaseProcess.start
def stopped(process):
    if str(getattr(getattr(process, "_target", None), "__module__", "")).startswith("sglang."):
        raise Worker(0)
    return start(process)

from sglang.srt.server_args import ServerArgs, prepare_server_args
try:
    from sglang.srt.plugins import load_plugins
except ImportError:
    framework = False
else:
    framework = True
    load_plugins()
argv = ["--model-path", sys.argv[1], "--served-model-name", "canary", "--device", "cpu", "--skip-tokenizer-init"]
reached, trouble = False, ""
try:
    import sglang.launch_server as launcher
    multiprocessing.process.BaseProcess.start = stopped
    launcher.run_server(prepare_server_args(argv))
except Worker:
    reached = True
except BaseException as error:
    trouble = f"{type(error).__name__}: {error}"
finally:
    multiprocessing.process.BaseProcess.start = start
held = ServerArgs.__dict__.get("check_server_args")
holder = f"{getattr(held, '__module__', '?')}.{getattr(held, '__qualname__', held)}"
print("\\n" + json.dumps({"framework": framework, "reached": reached, "holder": holder, "trouble": trouble,
    "attached": "sglang_guards.hook.attach" in sys.modules}), flush=True)
if not reached:
    server_args = ServerArgs(
        model_path=sys.argv[1], served_model_name="canary", device="cpu", skip_tokenizer_init=True
    )
    if hasattr(server_args, "resolve_once"):
        server_args.resolve_once()
    server_args.check_server_args()
"""
#: Where SGLang itself defines the method.
_OWN = "sglang.srt.server_args.ServerArgs.check_server_args"


@dataclass(frozen=True)
class Diagnosis:
    """What doctor found. `way` is plugin, legacy-hook or none; `fired` is the canary's answer."""

    sglang: str
    path: str
    fired: bool
    way: str
    framework: bool | None
    entry_point: str | None
    mode: str
    notes: tuple[str, ...]
    trouble: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `doctor --format json`."""
        return {
            "tool": {"name": "sglang-guards", "version": __version__},
            "sglang": {"version": self.sglang, "path": self.path, "plugins": self.framework},
            "active": self.fired,
            "way": self.way,
            "entry_point": self.entry_point,
            "mode": self.mode,
            "notes": list(self.notes),
            "trouble": self.trouble,
        }


def diagnose(env: Mapping[str, str] | None = None) -> Diagnosis:
    """Run the canary and read the surroundings; raises `CouldNotCheck` where SGLang is not installed."""
    variables = dict(os.environ if env is None else env)
    found = source.find()
    if found is None:
        raise CouldNotCheck(
            "SGLang is not installed in this Python environment",
            "install sglang-guards beside the SGLang that serves, and run doctor there",
        )
    given = settings.from_env(variables)
    canary = _canary(variables)
    fired, framework, trouble = canary.fired, canary.framework, canary.trouble
    entry = _entry_point()
    legacy = _legacy_hook()
    notes = [*given.notes, *_notes(variables, given.mode, framework, entry, legacy)]
    asked = found.ask("launcher_calls_validator")
    if fired and not canary.reached:
        notes.append(f"the launcher itself could not be run up to its workers: {canary.stopped}")
        if asked.value is not True:
            fired = False
            trouble = f"the hook is in place, but the launcher passes it by: {asked.detail}"
    elif canary.reached and canary.attached and not fired:
        trouble = "the launcher came to its workers without calling what is wrapped"
        if asked.value is not True:
            trouble += f": {asked.detail}"
    if not canary.holder.startswith(_OWN) and canary.holder:
        notes.append(f"{canary.holder} stands in the place of ServerArgs.check_server_args")
    notes += [f"SGLang carries patch: {patch}" for patch in applied_patches(found)]
    way = "none"
    if fired:
        way = "plugin" if framework and entry else "legacy-hook" if legacy else "plugin"
    return Diagnosis(
        sglang=found.version,
        path=str(found.root),
        fired=fired,
        way=way,
        framework=framework,
        entry_point=entry,
        mode=given.mode,
        notes=tuple(notes),
        trouble=trouble,
    )


@dataclass(frozen=True)
class _Canary:
    """Whether the hook fired, whether this SGLang has a plugin framework, whether its launcher came to the workers.

    `attached`: our hook was there; `holder`: what stands in the place of the validator.
    """

    fired: bool = False
    framework: bool | None = None
    reached: bool = False
    attached: bool = False
    holder: str = ""
    stopped: str = ""
    trouble: str = ""


def _canary(env: Mapping[str, str]) -> _Canary:
    with tempfile.TemporaryDirectory(prefix="sglang-guards-") as folder:
        file = Path(folder) / "canary.jsonl"
        (Path(folder) / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
        child = dict(env) | {
            "SGLANG_GUARDS_CANARY": str(file),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-c", _CANARY, folder],
                capture_output=True,
                text=True,
                env=child,
                timeout=_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return _Canary(trouble=f"SGLang did not get as far as the hook within {_TIMEOUT_S} s")
        fired = file.is_file() and any(_fired(line) for line in file.read_text(encoding="utf-8").splitlines())
    said: dict[str, Any] = {}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"framework"'):
            said = json.loads(line)
            break
    return _Canary(
        fired=fired,
        framework=said.get("framework"),
        reached=bool(said.get("reached")),
        attached=bool(said.get("attached")),
        holder=str(said.get("holder") or ""),
        stopped=str(said.get("trouble") or ""),
        trouble="" if done.returncode == 0 else _last_line(done.stderr),
    )


def _fired(line: str) -> bool:
    try:
        return json.loads(line).get("fired") is True
    except (ValueError, AttributeError):
        return False


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the canary process ended without a word"


def _entry_point() -> str | None:
    for entry in metadata.entry_points(group=GROUP):
        if entry.value.startswith("sglang_guards."):
            return f"{entry.name} = {entry.value}"
    return None


def _legacy_hook() -> Path | None:
    """The `.pth` file that `legacy-hook install` writes."""
    folders = {*site.getsitepackages(), site.getusersitepackages(), *sys.path}
    files = (Path(folder or ".") / PTH_NAME for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _notes(
    env: Mapping[str, str], mode: str, framework: bool | None, entry: str | None, legacy: Path | None
) -> list[str]:
    notes = []
    if mode == "off":
        notes.append("SGLANG_GUARDS=off switches the hook off")
    allowed = [name.strip() for name in env.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and ENTRY not in allowed:
        notes.append(f"SGLANG_PLUGINS={','.join(allowed)} leaves {ENTRY} out; add it")
    if framework is False and legacy is None:
        notes.append(
            "this SGLang has no plugin framework (it came with 0.5.11); "
            f"start servers with {_WRAPPER} …, or run sglang-guards legacy-hook install"
        )
    if framework and entry is None:
        notes.append("the sglang.srt.plugins entry point is not installed; run pip install sglang-guards")
    if legacy is not None:
        notes.append(f"legacy hook: {legacy}")
    if env.get("SGLANG_PLATFORM"):
        notes.append(
            f"SGLANG_PLATFORM={env['SGLANG_PLATFORM']} is set: SGLang leaves out other platforms' plugins"
        )
    return notes


def run(form: str = "text") -> int:
    """Print the diagnosis; 0 when the hook fired, 1 when it did not."""
    found = diagnose()
    if form == "json":
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(found)))
    return 0 if found.fired else 1


def lines(found: Diagnosis) -> list[str]:
    """The diagnosis for people; the last line is the verdict."""
    plugins = {True: "has plugins", False: "has no plugin framework", None: "plugins unknown"}[
        found.framework
    ]
    out = [
        f"sglang-guards {__version__} · Python {sys.version.split()[0]} at {sys.executable}",
        f"  sglang       {found.sglang} at {found.path}, {plugins}",
        f"  entry point  {found.entry_point or 'not installed'}",
        f"  way in       {found.way}",
        f"  mode         {found.mode}",
    ]
    out += [f"  note         {note}" for note in found.notes]
    if found.trouble:
        out.append(f"  trouble      {found.trouble}")
    out.append("")
    if found.fired:
        out.append("ACTIVE  the canary launch was checked in a fresh process")
    else:
        out.append("NOT ACTIVE  a canary launch went through without being checked")
    return out
