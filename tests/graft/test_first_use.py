"""What a first user gets wrong must be refused in a sentence, never answered by another method's model."""

import subprocess
import sys

import numpy as np
import pytest

import regraft
from regraft import GraftClassifier
from regraft.app.report.verdict import protocol
from regraft.app.results import _passes
from regraft.errors import RecipeError
from regraft.graft import with_gradients
from regraft.record import Score


@pytest.mark.parametrize("method", ["finetune", "scratch", "lp-ft", "finetune-refit", "head2toe-ft", "gradient"])
def test_an_estimator_refuses_methods_that_it_does_not_run(method: str) -> None:
    with pytest.raises(RecipeError, match=r"regraft\.adapt"):
        GraftClassifier(method=method).fit(np.eye(6), [0, 1] * 3)


@pytest.mark.parametrize("setting", [{"foo": 1}, {"folds": 2, "step": 3}])
def test_adapt_refuses_an_unknown_setting(setting: dict[str, int]) -> None:
    with pytest.raises(RecipeError, match="has no setting"):
        regraft.adapt("nowhere", "regraft/fashion-resnet", **setting)


def test_adapt_says_which_settings_there_are_and_takes_options_whole() -> None:
    with pytest.raises(RecipeError, match=r"'lable'; expected one of .*kind, label, limit"):
        regraft.adapt("nowhere", "regraft/fashion-resnet", lable="species")
    with pytest.raises(RecipeError, match="expected Options; got dict"):
        regraft.adapt("nowhere", "regraft/fashion-resnet", options={"seed": 1})


def test_a_report_of_what_is_no_record_says_what_to_give(tmp_path) -> None:
    with pytest.raises(RecipeError, match=r"got str.*Record\.load"):
        regraft.report("runs/photos", tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_adapt_takes_the_settings_of_stages() -> None:
    with pytest.raises(RecipeError, match="trains nothing"):
        regraft.adapt("nowhere", "regraft/fashion-resnet", method="probe", steps=3)
    with pytest.raises(RecipeError, match="takes no tau"):
        regraft.adapt("nowhere", "regraft/fashion-resnet", method="probe", tau=np.int64(2))
    with pytest.raises(RecipeError, match="two lengths"):
        regraft.adapt("nowhere", "regraft/fashion-resnet", method="finetune", steps=3, epochs=1)


def test_activation_mode_takes_no_theta2() -> None:
    with pytest.raises(RecipeError, match="takes no derivatives"):
        with_gradients("gradient", "activation", ["layer4.*"])


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("hold-out of a fifth (selection: optimistic)", "hold-out, optimistic"),
        ("hold-out of a fifth", "hold-out of a fifth"),
        ("inner cross-validation (selection: optimistic)", "inner cross-validation, optimistic"),
    ],
)
def test_a_hold_out_is_not_called_cross_validation(said: str, label: str) -> None:
    assert protocol(Score("accuracy", 0.5, None, None, "", 10, (), said)).label == label


def test_many_passes_are_no_part_of_one() -> None:
    words = ["0.60 of a backbone pass", "1 backbone pass", "1.0 backbone pass", "18.2 backbone passes"]
    assert [_passes(p) for p in (0.6, 1, 1.02, 18.2)] == words
    assert _passes(0) == "no backbone pass (features were stored)"


def test_one_pattern_is_not_taken_for_its_letters() -> None:
    (stage,) = [s for s in with_gradients("gradient", None, "layer4.*").stages if hasattr(s, "select")]
    assert stage.select == ("layer4.*",)


def test_packages_that_few_commands_need_are_imported_where_they_are_used() -> None:
    asked = "import sys, torch, regraft.graft\nfrom regraft.network.flops import Operations\n"
    asked += "with Operations() as counter: torch.nn.Linear(3, 4)(torch.ones(5, 3).contiguous())\n"
    asked += "assert counter.total == 2 * 3 * 4 * 5\n"
    asked += "print(sorted({'sklearn', 'scipy.stats', 'pandas', 'torch._dynamo'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert regraft.graft.GraftClassifier is GraftClassifier
    with pytest.raises(AttributeError, match="no attribute 'GraftBoth'"):
        regraft.graft.GraftBoth  # noqa: B018
