"""Trees that give expert layers a method of their own: which one runs is unknown there, and no error follows."""

from __future__ import annotations

import pytest

from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.report import unknown
from sglang_guards.report.model import Report
from sglang_guards.settings import Settings
from sglang_guards.source.probes.quant_method import LAYER
from sglang_guards.source.tree import Source
from tests.contract.tables import source
from tests.mutation.overlay import Edited
from tests.rules.cases import RULES, base_facts

FP8 = "sglang/srt/layers/quantization/fp8.py"
MODELOPT = "sglang/srt/layers/quantization/modelopt_quant.py"
MADE = "            fp8_method = Fp8MoEMethod(self)\n"
SKIPPED = "        elif isinstance(layer, FusedMoE):\n            if is_layer_skipped("
CREATED = "        self.quant_method.create_weights(\n"
ASKED = "quant_config.get_quant_method(self, prefix)\n            if self.quant_method is None:"

#: Edits after which SGLang's own method may not be what runs: (file, what stands there, what takes its place).
FORKS = {
    "environment decides": (
        FP8,
        MADE,
        "            if envs.LK_MOE.get():\n                return Fp8MoEMethod(self.cpu)\n" + MADE,
    ),
    "environment decides through a local name": (
        FP8,
        MADE,
        "            own = get_bool_env_var('LK_MOE')\n            if own:\n"
        "                return UnquantizedFusedMoEMethod()\n" + MADE,
    ),
    "a switch of the fork": (
        FP8,
        MADE,
        "            if is_lk_moe_enabled():\n                return UnquantizedFusedMoEMethod()\n" + MADE,
    ),
    "a constant of the fork": (
        FP8,
        MADE,
        "            if _lk_moe:\n                return UnquantizedFusedMoEMethod()\n" + MADE,
    ),
    "a class of its own": (FP8, MADE, "            fp8_method = LkFp8MoEMethod(self)\n"),
    "a wrapper": (FP8, MADE, "            fp8_method = LkMethod(Fp8MoEMethod(self))\n"),
    "the same name from another package": (
        FP8,
        MADE,
        "            from lk_moe import Fp8MoEMethod\n\n" + MADE,
    ),
    "before anything else": (
        FP8,
        SKIPPED,
        "        elif (own := self.lk_method(layer)) is not None:\n            return own\n" + SKIPPED,
    ),
    "by match": (
        FP8,
        MADE,
        "            match self.activation_scheme:\n                case 'lk':\n"
        "                    return LkMethod(self)\n" + MADE,
    ),
    "the layer swaps it": (LAYER, CREATED, "        self.quant_method = swap(self.quant_method)\n" + CREATED),
    "the layer swaps it by a switch": (
        LAYER,
        CREATED,
        "        if is_lk_moe_enabled():\n            self.quant_method = UnquantizedFusedMoEMethod()\n"
        + CREATED,
    ),
    "the layer asks a switch first": (
        LAYER,
        ASKED,
        "quant_config.get_quant_method(self, prefix)\n            if self.lk:\n"
        "                self.quant_method = UnquantizedFusedMoEMethod(True)\n"
        "            if self.quant_method is None:",
    ),
    "a helper gets the layer": (LAYER, CREATED, "        install_lk_method(self)\n" + CREATED),
    "setattr": (LAYER, CREATED, "        setattr(self, 'quant_method', LkMethod())\n" + CREATED),
}


def edited(tree: Source, rel: str, old: str, new: str) -> Source:
    text = tree.text(rel) or ""
    assert text.count(old) == 1, f"{rel} has it {text.count(old)} times"
    return Edited(tree, {rel: text.replace(old, new)})


def judged(tree: Source) -> Report:
    """FMS101's launch: FP8 experts over eight ranks with the fused sum, on a tree whose kernel is faulty."""
    facts = base_facts("moe-on-8-h200") | {
        "args.ep_size": 8,
        "args.enable_fused_moe_sum_all_reduce": True,
        "args.kt_weight_path": None,
    }
    launch = Launch({name: Fact(value, "resolved") for name, value in facts.items()}, source=tree)
    return judge(launch, Settings(), [RULES["FMS101"]])


def test_sglang_itself_gives_an_error() -> None:
    assert [error.id for error in judged(source("0.5.15")).errors] == ["FMS101"]


@pytest.mark.parametrize("name", FORKS)
def test_a_fork_gives_none_and_says_so(name: str) -> None:
    rel, old, new = FORKS[name]
    report = judged(edited(source("0.5.15"), rel, old, new))
    assert not report.findings
    assert "FMS101" in {rule.id for rule in report.skipped}
    assert "the runner of the MoE layers: which one they get is not known" in " ".join(unknown.lines(report))


def test_a_helper_of_the_config_is_followed() -> None:
    """ModelOpt's configs hand the question to a method of their base."""
    old = "            return Moe(self)\n"
    tree = source("0.5.15")
    other = edited(tree, MODELOPT, old, "            return LkMethod(Moe(self))\n")
    assert tree.ask("config_gives_its_method", kind="modelopt_fp8").value is True
    assert other.ask("config_gives_its_method", kind="modelopt_fp8").value is None


def test_a_new_test_about_the_checkpoint_changes_nothing() -> None:
    rel, old = FP8, MADE
    new = "            if self.is_scaled and prefix:\n                return Fp8MoEMethod(self)\n" + MADE
    answer = edited(source("0.5.15"), rel, old, new).ask("config_gives_its_method", kind="fp8")
    assert answer.value is True, answer.detail
