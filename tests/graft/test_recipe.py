"""A recipe's order is checked before anything runs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

import regraft.graft
from regraft.errors import RecipeError
from regraft.features import Taps
from regraft.graft import METHODS, Features, Gradients, Probe, Recipe, Reinitialise, Select, SetHead, Solve, Train
from regraft.graft.recipe import find_recipe


def test_named_recipes_are_whole():
    assert list(METHODS) == [
        "probe", "all-layers", "head2toe", "gradient", "tangent-gp", "finetune", "lp-ft", "scratch", "head2toe-ft",
        "head2toe-ft-plus", "finetune-refit", "finetune-refit-head2toe",
    ]  # fmt: skip
    for name, recipe in METHODS.items():
        assert recipe.name == name
        assert recipe.citation
        assert recipe.title
    for name in ("probe", "all-layers", "head2toe"):
        recipe = METHODS[name]
        assert recipe.stages == tuple(s for s in (recipe.features, recipe.select, recipe.solve) if s is not None)


def test_training_divides_a_recipe():
    """The pass, the head and the solve that come before it are of the backbone as it came."""
    refit = METHODS["finetune-refit"]
    assert refit.features.taps.patterns == ("embedding",)
    assert refit.refit[0] == Features()
    assert refit.refit[1:] == (Solve(), None)
    few = METHODS["finetune-refit-head2toe"]
    assert (few.select, few.refit[1:]) == (None, (Solve(), Select()))
    assert METHODS["head2toe-ft"].select == Select()
    assert METHODS["head2toe-ft"].refit is None
    assert METHODS["lp-ft"].solve.forms == ("logistic",)
    assert METHODS["lp-ft"].refit is None
    assert METHODS["scratch"].train.tuning.norms == "trained"
    assert [name for name, recipe in METHODS.items() if recipe.train is None] == [
        "probe", "all-layers", "head2toe", "gradient", "tangent-gp"]  # fmt: skip


def test_solve_before_features_is_refused_with_what_is_lacking():
    with pytest.raises(RecipeError, match=r"Solve comes too early.*yields design.*Solve → Features"):
        Recipe("wrong", "", (Solve(), Features()))


@pytest.mark.parametrize("stages", [(), (Features(),)])
def test_a_recipe_without_a_readout_is_refused(stages):
    with pytest.raises(RecipeError, match="yields no readout"):
        Recipe("half", "", stages)


def test_unknown_name_gets_the_near_one():
    with pytest.raises(RecipeError, match=r"did you mean all-layers\?"):
        find_recipe("all-layer")
    assert find_recipe(METHODS["probe"]) is METHODS["probe"]
    with pytest.raises(RecipeError, match=r"method \['probe'\] is unknown"):
        find_recipe(["probe"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scalings": ("feature",)}, "expected a tuple of at least one of none, unit, root, root-unit; got .'feature'"),
        ({"scalings": ()}, "at least one"),
        ({"scalings": "unit"}, "a tuple"),
        ({"taps": ("embedding",)}, "expected a Taps"),
    ],
)
def test_features_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(RecipeError, match=words):
        Features(**settings)


def test_recipes_are_values():
    assert Features() == Features()
    assert hash(Recipe("a", "", (Features(), Solve()))) == hash(Recipe("a", "", (Features(), Solve())))


def test_strengths_that_no_head_would_try_are_refused():
    chosen = (Features(), Select(fractions=(0.1,)))
    with pytest.raises(RecipeError, match=r"got Solve\(strengths=\(0.5,\)\).*Select\(strengths"):
        Recipe("named", "", (*chosen, Solve(("ridge",), strengths=(0.5,))))
    refit = Recipe("refit", "", (*chosen, Solve(), Train(), Features(), Solve(strengths=(0.5,))))
    assert refit.refit[1].strengths == (0.5,)  # on all features, where they are tried


@pytest.mark.parametrize("reader", [(Probe(1), Train()), (Solve(), SetHead(), Gradients(), Solve())])
def test_features_that_the_reader_of_the_last_layer_would_leave_aside_are_refused(reader):
    taps = Taps(("embedding",), (None,))
    Recipe("fits", "", (Features(taps, ("none",)), *reader))
    for before in ((Features(),), (Features(taps, ("unit",)),), (Features(taps, ("none",)), Select(), Solve())):
        solved = isinstance(reader[0], Probe) and len(before) > 1  # and probed again
        words = "one Probe or Solve" if solved else r"last layer as it is; expected Features\(Taps\(\('embedding'"
        with pytest.raises(RecipeError, match=words):
            Recipe("else", "", (*before, *reader))


@pytest.mark.parametrize("stage", [SetHead(), Probe(0)])
def test_what_a_refitted_head_would_leave_aside_is_refused(stage):
    solved = (Features(), Solve(), Train(), Features())
    with pytest.raises(RecipeError, match=rf"after a training reads features.*got {type(stage).__name__}"):
        Recipe("refit", "", (*solved, stage, Solve()))


@pytest.mark.parametrize(
    ("select", "solve"),
    [
        (Select(solver="exact"), Solve()),
        (Select(score="variance"), Solve()),
        (Select(by="layer"), Solve()),
        (Select(), Solve(penalty="l1")),
        (Select(), Solve(strengths=(0.5,))),
        (None, Solve(penalty="l1")),
        (None, Solve(penalty="l21")),
    ],
)
def test_what_cannot_be_chosen_after_a_training_is_refused(select, solve):
    with pytest.raises(RecipeError, match=r"fast search alone, on one fold|names strengths"):
        Recipe("refit", "", (Features(), Solve(), Train(), Features(), *([select] if select else []), solve))


_LAST = Features(Taps(("embedding",), (None,)), ("none",))


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ((_LAST, Probe(1), Train(), Features()), "expected Features and Solve after Train"),
        ((_LAST, Probe(1), Train(), Features(), Select()), "expected Features and Solve after Train"),
        ((_LAST, Solve(), Train(), Features()), "expected Features and Solve after Train"),
        ((_LAST, Probe(1), Train(), Features(), Features(), Solve()), "expected Features and Solve after Train"),
        ((_LAST, Probe(1)), "one Probe or Solve, then Train; got Features → Probe"),
        ((_LAST, Solve(), Probe(1), Train()), "one Probe or Solve, then Train"),
        ((_LAST, Solve(), Solve(), Train()), "one Probe or Solve, then Train"),
        ((_LAST, Solve(), SetHead(), Gradients(), Train()), "a Probe or Solve before Train"),
        ((_LAST, Solve(), SetHead(), Gradients(), Solve(), Train()), "a Probe or Solve before Train"),
        ((_LAST, Features(), Solve(), Train()), "one Features before Train"),
        ((_LAST, Probe(1), Probe(4), Train()), "one Probe or Solve, then Train"),
        ((Reinitialise(), Reinitialise(1), _LAST, Probe(0), Train()), "one Reinitialise, as the first stage"),
        ((_LAST, Probe(0), Reinitialise(1), Train()), "one Reinitialise, as the first stage"),
        ((_LAST, Probe(1, hidden=16), Train(or_frozen=True)), r"got Probe\(hidden=16\)"),
        ((_LAST, Probe(1, aspp=True), Train(or_frozen=True)), r"got Probe\(aspp=True\)"),
        ((Reinitialise(2), _LAST, Probe(1), Train(or_frozen=True)), r"got Reinitialise\(2\)"),
    ],
)
def test_stages_that_a_training_would_leave_aside_are_refused(stages, words):
    with pytest.raises(RecipeError, match=words):
        Recipe("wrong", "", stages)


def test_the_documented_stages_are_exported():
    lines = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    begin = lines.index("| stage | does |") + 2
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[begin:])
    named = [name for row in rows for name in re.findall(r"`(\w+)\(", row.split(" | ")[0])]
    assert {"Select", "Posterior", "Train"} < set(named)
    for name in named:
        assert dataclasses.is_dataclass(getattr(regraft.graft, name))


def test_selection_needs_features_first():
    with pytest.raises(RecipeError, match="Select comes too early"):
        Recipe("wrong", "", (Select(), Features(), Solve()))
