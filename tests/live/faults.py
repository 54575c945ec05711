"""Generated faults on the SGLang of this process: a launch that SGLang accepts is never stopped or altered by us.

Prints JSON: how many cases ran by kind, and the first failures. Run by test_faults.py, one process per release.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

ODD: list[Any] = [
    None,
    "",
    "four",
    "auto",
    [],
    {},
    ["x"],
    {"a": 1},
    object(),
    b"x",
    (),
    float("nan"),
    True,
    lambda: 0,
]
NONSENSE = ["", " ", "enforce ", "maybe", "1", "off\n", "FMS101", "=;=;", "FMS=;", "💥", "x" * 5000, "\x00"]
CASES: Counter[str] = Counter()
FAILURES: list[str] = []


class Lines(logging.Handler):
    """Counts what we log; may be told to fail, as a broken handler of the operator would."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.broken = False

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        if self.broken:
            raise OSError("disk full")

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)
        return True


LOG = Lines()


def resolved(argv: list[str]) -> Any:
    from sglang.srt.server_args import prepare_server_args

    from sglang_guards import sglang_compat

    server_args = prepare_server_args(argv)
    sglang_compat.resolve(server_args)
    return server_args


def attempt(kind: str, server_args: Any) -> None:
    """One validation under a fault: nothing is raised, nothing is changed, at least one line is logged."""
    from sglang_guards import sglang_compat
    from sglang_guards.hook import attach, validate

    CASES[kind] += 1
    names = sglang_compat.fields(server_args)
    before = {name: id(getattr(sglang_compat.view(server_args), name, None)) for name in names}
    LOG.seen.clear()
    validate._told.clear()
    try:
        attach.after_check_server_args(None, server_args)
    except BaseException as error:  # noqa: BLE001 - any raise is the failure that is looked for
        FAILURES.append(f"{kind}: raised {type(error).__name__}: {str(error)[:300]}")
    after = {name: id(getattr(sglang_compat.view(server_args), name, None)) for name in names}
    if before != after:
        FAILURES.append(f"{kind}: changed {[n for n in names if before[n] != after[n]]}")
    if not LOG.seen:
        FAILURES.append(f"{kind}: silent")


def odd_field(server_args: Any, name: str, value: Any) -> Any:
    """A copy whose field has another type, or (up to 0.5.18) none at all."""
    changed = copy.copy(server_args)
    declared = getattr(server_args, "_resolved_overrides", None)
    if hasattr(server_args, "resolve_once"):  # decisions win over fields, which are frozen
        changed._resolved_overrides = [
            *(declared or ()),
            ("fault", {name: object() if value is ODD else value}),
        ]
    elif value is ODD:
        with contextlib.suppress(AttributeError):
            object.__delattr__(changed, name)
    else:
        object.__setattr__(changed, name, value)
    return changed


def fields_of_another_type(server_args: Any, examples: int) -> None:
    from sglang_guards import sglang_compat

    names = sglang_compat.fields(server_args)

    @seed(1)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(names), st.sampled_from([ODD, *ODD]))
    def run(name: str, value: Any) -> None:
        was = getattr(sglang_compat.view(server_args), name, None)
        if value is not ODD and (was is None or isinstance(was, bool)) and bool(value) != bool(was):
            return  # switched on or off: another launch, not a fault
        attempt("a field of another type or missing", odd_field(server_args, name, value))

    run()


def damaged_configs(server_args: Any, examples: int) -> None:
    from sglang_guards import sglang_compat

    good = sglang_compat.model_config(server_args).hf_config.to_dict()
    keys = sorted(good)

    @seed(2)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.tuples(st.sampled_from(keys), st.sampled_from(ODD)), min_size=1, max_size=6),
        st.integers(0, 3),
    )
    def run(changes: list[tuple[str, Any]], shape: int) -> None:
        damaged = [good | dict(changes), {}, {k: good[k] for k, _ in changes}, None][shape]
        fake = SimpleNamespace(
            hf_config=SimpleNamespace(to_dict=lambda: damaged), quantization=None, dtype=None
        )
        with (
            mock.patch.object(sglang_compat, "model_config", return_value=fake),
            mock.patch("sglang_guards.launch.collect.cached_config", return_value=damaged),
        ):
            attempt("a damaged config", server_args)

    run()


def damaged_source(server_args: Any, examples: int) -> None:
    from sglang_guards import source

    rels = [
        "sglang/srt/server_args.py",
        "sglang/srt/arg_groups/overrides.py",
        "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe.py",
        "sglang/srt/layers/moe/moe_runner/triton.py",
        "sglang/srt/layers/communicator.py",
        "sglang/srt/models/qwen3_moe.py",
        "sglang/srt/layers/quantization/fp8.py",
    ]
    real = source.Source.text
    damage: list[Callable[[str], str | None]] = [
        lambda text: None,
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("def ", "def (", 50),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\x00" + text,
        lambda text: text.replace("    ", "\t"),
    ]

    @seed(3)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(rels), min_size=1, max_size=7), st.sampled_from(range(len(damage))))
    def run(broken: list[str], how: int) -> None:
        def text(self: Any, rel: str, *args: Any) -> str | None:
            found = real(self, rel, *args)
            return damage[how](found) if rel in broken and found is not None else found

        with mock.patch.object(source.Source, "text", text):
            attempt("a damaged source file", server_args)

    run()


def nonsense_environment(server_args: Any, examples: int) -> None:
    names = [
        "SGLANG_GUARDS_IGNORE",
        "SGLANG_GUARDS_AUTO",
        "SGLANG_GUARDS_REPORT",
        "SGLANG_GUARDS_HOTFIX",
        "SGLANG_GUARDS",
    ]

    @seed(4)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.dictionaries(
            st.sampled_from(names), st.sampled_from([*NONSENSE, "/proc/nope/x.json", "/"]), min_size=1
        )
    )
    def run(values: dict[str, str]) -> None:
        clean = {k: v for k, v in values.items() if "\x00" not in v and v.strip().lower() != "off"}
        with mock.patch.dict(os.environ, clean):
            attempt("nonsense in the environment", server_args)

    run()


def failing_parts(server_args: Any) -> None:
    """Each rule raises, each stage raises, the log handler raises, the report cannot be written, modules are gone."""
    from sglang_guards import judge, rules

    def boom(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("planted")

    for rule in rules.all_rules():
        planted = [
            rules.Rule(**{**vars(r), "check": boom}) if r.id == rule.id else r for r in rules.all_rules()
        ]
        with mock.patch.object(judge, "all_rules", lambda problems=None, planted=planted: tuple(planted)):
            attempt("an exception in a rule", server_args)
        broken = [
            rules.Rule(**{**vars(r), "applies": boom}) if r.id == rule.id else r for r in rules.all_rules()
        ]
        with mock.patch.object(judge, "all_rules", lambda problems=None, broken=broken: tuple(broken)):
            attempt("an exception in a rule's precondition", server_args)
    stages = (
        "sglang_guards.hook.validate.collect",
        "sglang_guards.hook.validate.judge",
        "sglang_guards.hook.validate.typed_flags",
        "sglang_guards.report.text.log_lines",
        "sglang_guards.launch.collect.model_facts",
        "sglang_guards.source.tree.find",
        "sglang_guards.sglang_compat.view",
        "sglang_guards.sglang_compat.fields",
        "sglang_guards.sglang_compat.defaults",
        "sglang_guards.sglang_compat.platform",
        "sglang_guards.launch.moe_layers.facts",
        "sglang_guards.launch.measurements.told",
    )
    for stage in stages:
        for error in (
            RuntimeError("planted"),
            RecursionError("planted"),
            MemoryError("planted"),
            KeyError("planted"),
        ):
            if stage.endswith("compat.view"):
                continue  # `attempt` reads through it
            with mock.patch(stage, side_effect=error):
                if stage.endswith("compat.fields"):
                    continue
                attempt(f"{type(error).__name__} in {stage}", server_args)
    LOG.broken = True
    logging.raiseExceptions = False
    attempt("a failing log handler", server_args)
    LOG.broken = False
    for path in ("/proc/1/x.json", "/no/such/folder/x.json", tempfile.gettempdir()):
        with mock.patch.dict(os.environ, {"SGLANG_GUARDS_REPORT": path}):
            attempt("a report that cannot be written", server_args)


def called_oddly(server_args: Any) -> None:
    """From threads, many times, twice at once."""
    import threading

    threads = [threading.Thread(target=attempt, args=("from a thread", server_args)) for _ in range(8)]
    for thread in threads:
        thread.start()
        thread.join()
    for _ in range(8):
        attempt("called again", server_args)


def main() -> None:
    from sglang_guards import source
    from sglang_guards.launch import gpus
    from sglang_guards.preflight import simulated_gpu

    asked = json.load(sys.stdin)
    tools = Path(tempfile.mkdtemp(prefix="sglang-guards-tools-"))
    simulated_gpu.write_tools(tools)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
    simulated_gpu.hide()
    simulated_gpu.warm_up()
    simulated_gpu.strike(gpus.parse("4xH100"))
    logger = logging.getLogger("sglang_guards")
    logger.addHandler(LOG)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    sys.argv = ["sglang.launch_server", *asked["argv"]]
    server_args = resolved(asked["argv"])
    n = asked["examples"]
    damaged_source(server_args, max(n // 8, 14))  # each kind of damage twice
    once = source.find()  # the tree does not change below: read it once
    with mock.patch("sglang_guards.source.tree.find", return_value=once):
        fields_of_another_type(server_args, n)
        damaged_configs(server_args, n // 3)
        nonsense_environment(server_args, n // 6)
        failing_parts(server_args)
        called_oddly(server_args)
    print(json.dumps({"cases": CASES, "total": sum(CASES.values()), "failures": FAILURES[:20]}))


if __name__ == "__main__":
    main()
