"""Tables 1 and 2 of paper 000: which of θ₁, θ₂ and ω must be pretrained, and how many layers θ₂ should have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from regraft.reproduce.arms import Bench
from regraft.reproduce.gradients.models import ACTIVATION, DRAWN_MODEL, LINEAR_MODEL, RANDOM, TUNED
from regraft.reproduce.gradients.setting import bench_of, setting_of
from regraft.reproduce.outcome import Outcome, all_of
from regraft.reproduce.pieces import Measured, Table, Tables, above
from regraft.reproduce.result import Result, swap
from regraft.reproduce.row import Context
from regraft.reproduce.words import about, at_least, bound, greater

__all__ = ["MEASURED", "TOPS", "arm_name", "table1", "table1_depth", "table2"]

TOPS = {"top": 1, "top 2": 2, "top 3": 3}
COMBINATIONS = tuple(tuple(what for what, drawn in zip(RANDOM, each) if drawn) for each in product((0, 1), repeat=3))
ALL, BELOW, OWN_TOP = RANDOM, ("theta1",), ("theta2",)
_SIGNS = {"theta1": "θ1", "theta2": "θ2", "omega": "ω"}


def arm_name(mode: str, top: str, random: Sequence[str] = ()) -> str:
    """``grad top 2, random θ1 ω``."""
    word = {"gradient": "grad"}.get(mode, mode)
    return f"{word} {top}" + (f", random {' '.join(_SIGNS[what] for what in random)}" if random else "")


def _linear_models(
    table: Tables, network: str, tops: Sequence[str], kinds: Sequence[tuple[str, ...]]
) -> dict[str, Table]:
    return {
        arm_name(mode, top, random): table(
            DRAWN_MODEL if random else LINEAR_MODEL, network, mode=mode, count=TOPS[top], random=list(random)
        )
        for top in tops
        for random in kinds
        for mode in ("gradient", "full")
    }


def _tuned(table: Tables, network: str, tops: Sequence[str]) -> dict[str, Table]:
    return {f"FT {top}": table(TUNED, network, count=TOPS[top]) for top in tops}


# ------------------------------------------------------------------------------------------- Table 1


def table1(bench: Bench, network: str, labels: int | None = None) -> Result:
    """Every combination of random and pretrained θ₁, θ₂ and ω, by three sizes of θ₂."""
    table = Tables(bench)
    arms = {"activation": table(ACTIVATION, network), **_linear_models(table, network, list(TOPS), COMBINATIONS)}
    notes = {"network": f"{network}; what is random is drawn by the seed", "labels": labels or "all"}
    return Result(arms, {}, bench.seeds, table.gates("gf-table1"), notes)


def _pretrained_helps(result: Result) -> Outcome:
    return all_of(
        [greater(result.arm(arm_name("full", top)), result.arm("activation"), 2, names=(f"full {top}", "activation"))
         for top in TOPS]
    )  # fmt: skip


def _random_is_no_help(result: Result) -> Outcome:
    return all_of(
        [about(result.arm(arm_name("full", top, RANDOM[:2])), result.arm("activation"), 1.5,
               names=(f"full {top}, random θ1 θ2", "activation")) for top in TOPS]
    )  # fmt: skip


def _below_alone_is_between(result: Result) -> Outcome:
    """θ₁ alone pretrained: not below both random, and below all pretrained."""
    outcomes = []
    for top in TOPS:
        alone = result.arm(arm_name("full", top, OWN_TOP))
        both, none = result.arm(arm_name("full", top, RANDOM[:2])), result.arm(arm_name("full", top))
        outcomes.append(at_least(alone, both, names=(f"full {top}, θ1 alone pretrained", "both random")))
        outcomes.append(greater(none, alone, names=(f"full {top}", "θ1 alone pretrained")))
    return all_of(outcomes)


def _random_alone_is_poor(result: Result) -> Outcome:
    return all_of(
        [greater(result.arm("activation"), result.arm(arm_name("gradient", top, ALL)), 10,
                 names=("activation", f"grad {top}, all random")) for top in TOPS]
    )  # fmt: skip


def _gradients_alone_do(result: Result) -> Outcome:
    return all_of(
        [about(result.arm(arm_name("gradient", top)), result.arm(arm_name("full", top)), 1.5,
               names=(f"grad {top}", f"full {top}")) for top in TOPS]
    )  # fmt: skip


def table1_depth(bench: Bench, network: str, labels: int | None = None) -> Result:
    """The full model and fine-tuning by the size of θ₂."""
    table = Tables(bench)
    arms: dict[str, Table] = {"activation": table(ACTIVATION, network)}
    for top, count in TOPS.items():
        # the parameters are those of table1, so that both rows share the arms
        arms[arm_name("full", top)] = table(LINEAR_MODEL, network, mode="full", count=count, random=[])
    arms |= _tuned(table, network, list(TOPS))
    notes = {"network": network, "labels": labels or "all"}
    return Result(arms, {}, bench.seeds, table.gates("gf-table1-depth"), notes)


def _top_suffices(result: Result) -> Outcome:
    """gain(top) ≥ 0.7 gain(top 3): the interval of gain(top) − 0.7 gain(top 3) above 0."""
    activation = result.arm("activation")
    gain = {top: result.arm(arm_name("full", top)) - activation for top in ("top", "top 3")}
    return at_least(gain["top"], 0.7 * gain["top 3"], names=("gain(top)", "0.7 gain(top 3)"))


def _near_tuning(result: Result) -> Outcome:
    left = (result.arm("FT top") - result.arm(arm_name("full", "top"))).mean(axis=0)
    return bound(left, at_least=-1, at_most=4, what="FT − full, top")


# ------------------------------------------------------------------------------------------- Table 2

_BLOCKS = ("top", "top 2")  # the last block, the last two


def table2(bench: Bench, network: str) -> Result:
    """A supervised network on the objects in an image: pretrained, θ₁ alone pretrained, θ₁ random."""
    table = Tables(bench)
    arms = {
        "activation": table(ACTIVATION, network),
        **_linear_models(table, network, _BLOCKS, ((), OWN_TOP, BELOW)),
        **_tuned(table, network, _BLOCKS),
    }
    notes = {
        "network": f"{network} at its own size, centre crop",
        "block": "of a MobileNetV1 a depthwise and a pointwise layer",
        "random": "θ1 random: θ2 pretrained; θ1 alone pretrained: θ2 random; ω solved on the pretrained features",
    }
    return Result(arms, {}, bench.seeds, table.gates("gf-table2"), notes)


def _full_over_activation(result: Result) -> Outcome:
    return all_of(
        [greater(result.arm(arm_name("full", top)), result.arm("activation"), names=(f"full {top}", "activation"))
         for top in _BLOCKS]
    )  # fmt: skip


def _full_over_gradients(result: Result) -> Outcome:
    return all_of(
        [greater(result.arm(arm_name("full", top)), result.arm(arm_name("gradient", top)),
                 names=(f"full {top}", f"grad {top}")) for top in _BLOCKS]
    )  # fmt: skip


def _full_near_tuning(result: Result) -> Outcome:
    return all_of(
        [at_least(result.arm(arm_name("full", top)), result.arm(f"FT {top}"), 0.5, names=(f"full {top}", f"FT {top}"))
         for top in _BLOCKS]
    )  # fmt: skip


def _random_below_is_no_help(result: Result) -> Outcome:
    return all_of(
        [about(result.arm(arm_name("full", top, BELOW)), result.arm("activation"), 1,
               names=(f"full {top}, random θ1", "activation")) for top in _BLOCKS]
    )  # fmt: skip


def _gradients_in_order(result: Result) -> Outcome:
    outcomes = []
    for top in _BLOCKS:
        poor, middle, good = (result.arm(arm_name("gradient", top, random)) for random in (BELOW, OWN_TOP, ()))
        outcomes.append(greater(middle, poor, names=(f"grad {top}, θ1 alone pretrained", "random θ1")))
        outcomes.append(greater(good, middle, names=(f"grad {top}", "θ1 alone pretrained")))
    return all_of(outcomes)


# ------------------------------------------------------------------------------------------- wiring


def _run_table1(context: Context) -> Result:
    setting = setting_of(context)
    labels = setting.labels.get("gf-table1")
    return table1(bench_of(context, (setting.ablated,), (setting.ablated_task,), labels), setting.ablated, labels)


def _run_table1_depth(context: Context) -> Result:
    setting = setting_of(context)
    labels = setting.labels.get("gf-table1-depth")
    return table1_depth(bench_of(context, (setting.ablated,), (setting.ablated_task,), labels), setting.ablated, labels)


def _run_table2(context: Context) -> Result:
    setting = setting_of(context)
    network, task = setting.supervised[0], setting.supervised_tasks[0]
    return table2(bench_of(context, (network,), (task,)), network)


_FULL, _GRAD = arm_name("full", "top"), arm_name("gradient", "top")

MEASURED: dict[str, Measured] = {
    "gf-table1": Measured(
        _run_table1,
        {
            "a": _pretrained_helps,
            "b": _random_is_no_help,
            "c": _below_alone_is_between,
            "d": _random_alone_is_poor,
            "e": _gradients_alone_do,
        },
        {
            "a": swap(_FULL, "activation"),
            "b": swap(arm_name("full", "top", RANDOM[:2]), _FULL),
            "c": swap(arm_name("full", "top", OWN_TOP), _FULL),
            "d": swap(arm_name("gradient", "top", ALL), _GRAD),
            "e": swap(_GRAD, "activation"),
        },
    ),
    "gf-table1-depth": Measured(
        _run_table1_depth,
        {"a": _top_suffices, "b": _near_tuning, "c": above("FT top 3", arm_name("full", "top 3"))},
        {
            "a": swap(_FULL, "activation"),
            "b": swap("FT top", "activation"),
            "c": swap("FT top 3", arm_name("full", "top 3")),
        },
        {"b": 1.27, "c": 2.93},
    ),
    "gf-table2": Measured(
        _run_table2,
        {
            "a": _full_over_activation,
            "b": _full_over_gradients,
            "c": _full_near_tuning,
            "d": _random_below_is_no_help,
            "e": _gradients_in_order,
        },
        {
            "a": swap(_FULL, "activation"),
            "b": swap(_FULL, _GRAD),
            "c": swap(_FULL, arm_name("gradient", "top", BELOW)),
            "d": swap(arm_name("full", "top", BELOW), arm_name("gradient", "top", BELOW)),
            "e": swap(_GRAD, arm_name("gradient", "top", BELOW)),
        },
        {"a": 0.75, "b": 0.28, "c": 0.53},
    ),
}
