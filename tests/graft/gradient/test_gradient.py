"""Gradient features as a recipe: the model's algebra, what each fold may see, every kind of labels, and raw inputs."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.features.toy import toy_arrays, toy_manifest, toy_network
from torch import nn
from transformers.pytorch_utils import Conv1D

import regraft
from regraft.data import scan
from regraft.errors import DataError, ModelError, RecipeError, SolverError
from regraft.features import Tangent
from regraft.graft import METHODS, Gradients, Recipe, SetHead, Solve, gradient_features, load_artifact, with_gradients
from regraft.graft.adapted.tangent import PREFIX, prior_deviations
from regraft.graft.gradient.fit import Both, Labels, TangentFitter, _Cut, solve_head, weight_of
from regraft.graft.gradient.problem import GradientProblem
from regraft.graft.problem import Task
from regraft.heads import Response
from regraft.linear import Blocks, Dense, FeatureDesign
from regraft.network import ArrayPreprocess, from_module, reinitialised

LAST = ("4.*",)


def network(seed: int = 0):
    """Two convolutions and an average: 3 × 6 × 6 arrays to five features."""
    torch.manual_seed(seed)
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 2), nn.ReLU(), nn.Conv2d(6, 5, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return from_module(body, ArrayPreprocess((3, 6, 6)), name="small")


def arrays(rows: int, kind: str, seed: int = 0):
    """Inputs whose labels are told by a fixed nonlinear function of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3, 6, 6)).astype(np.float32)
    told = np.stack([np.abs(x[:, c]).mean((1, 2)) + x[:, c].mean((1, 2)) for c in range(3)], axis=1)
    told = (told - told.mean(0)) / told.std(0)
    y = {
        "multiclass": told.argmax(1),
        "binary": (told[:, 0] > 0).astype(int),
        "multilabel": (told > 0.3).astype(float),
        "regression": told[:, :2] * [1.0, 50.0] + [0.0, 1000.0],
    }[kind]
    return x, y


def both_of(rows: int = 30, mode: str = "full", seed: int = 0):
    """The two halves in float64, over features that the tangent itself gives."""
    x, y = arrays(rows, "multiclass", seed)
    tangent = Tangent(network(), LAST, torch.from_numpy(x), of="embedding", dtype=torch.float64)
    features = FeatureDesign({"embedding": Dense(tangent.outputs)}, 3)
    response = Response.of("multiclass", ["a", "b", "c"], y)
    return Both(features, tangent, torch.arange(rows), mode), response


def rows_of(x, y, kind=None, tested: int = 12):
    """A manifest whose last rows are its test split: one solve, no outer cross-validation."""
    manifest = scan((x, y), kind=kind)
    return replace(manifest, split=("train",) * (len(x) - tested) + ("test",) * tested)


def labels_of(response: Response) -> Labels:
    return Labels.of(response, torch.ones(len(response), 1, dtype=torch.float64))


def test_labels_that_are_all_alike_have_the_chance_of_the_rule_of_succession() -> None:
    """Each of the rows that are fitted and have it, whatever the derivatives."""
    both, response = both_of(33)
    values = torch.stack([response.values[:, 0], torch.zeros(33), torch.ones(33)], 1).double()
    weights = torch.ones(33, 3).double()
    weights[:6, 2] = 0
    fitter = TangentFitter(both, Labels("sigmoid", values, weights), torch.arange(33) % 3, Gradients(LAST))
    form = fitter.form(1e-2)
    found, _ = fitter.out_of_fold(form, [1e-2])
    np.testing.assert_allclose(found[0, :, 1:], np.log([[1 / 23, 19]] * 33), atol=1e-6)
    _, intercept, _ = fitter.refit(form, 1e-2, None)
    np.testing.assert_allclose(intercept[1:], np.log([1 / 34, 28]), atol=1e-6)


# ------------------------------------------------------------------------------------------ the model


def test_at_step_zero_full_is_activation_exactly() -> None:
    both, response = both_of()
    cut = _Cut(both, labels_of(response), 1e-2, Gradients(LAST), None)
    expected = both.features.apply(cut.start.coefficients)
    assert torch.equal(cut.design.apply(cut.begin()), expected)
    # and (ω, 0) is the optimum over w₁ at w₂ = 0: the whole gradient there is that of the gradients' block
    problem = cut.problem(1e-2)
    fit = problem.at(cut.begin())
    penalty = 0.5 * cut.head_penalty * float(sum(b.square().sum() for b in cut.start.coefficients.values()))
    data = fit.objective - penalty
    assert cut.start.objective == pytest.approx(data + penalty, rel=1e-12)


def test_the_design_is_features_beside_omega_times_the_jacobian() -> None:
    both, _ = both_of(rows=6)
    head = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    module = copy.deepcopy(network().module).double()
    x = torch.from_numpy(arrays(6, "multiclass")[0]).double()
    part = {name: value.detach() for name, value in module.named_parameters() if name.startswith("4.")}
    jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(module, p, (x,)))(part)
    rows = both.design(head).rows(list(range(6)))
    assert set(rows) == {"embedding", *(PREFIX + name for name in part)}
    for name, value in jacobian.items():
        torch.testing.assert_close(rows[PREFIX + name], torch.einsum("nd...,cd->nc...", value, head))
    w = Blocks({name: torch.randn(s).double() for name, s in both.design(head).shapes.items()})
    logits = module(x).detach() @ w["embedding"]
    for name, value in jacobian.items():
        logits = logits + torch.einsum("nd...,cd,...->nc", value, head, w[PREFIX + name])
    torch.testing.assert_close(both.design(head).apply(w), logits)


def test_full_lowers_the_objective_of_activation_and_modes_are_parts_of_it() -> None:
    both, response = both_of(60)
    cut = _Cut(both, labels_of(response), 1e-2, Gradients(LAST), None)
    found = {strength: cut.solve(strength, 1e-6) for strength in (1e4, 1.0, 1e-3)}
    assert found[1e4].objective == pytest.approx(cut.start.objective, rel=1e-3)  # a penalty that leaves w₂ nothing
    assert found[1e-3].objective < found[1.0].objective < cut.start.objective
    assert list(replace(both, mode="activation").design(None).shapes) == ["embedding"]
    assert all(name.startswith(PREFIX) for name in replace(both, mode="gradient").design(cut.head).shapes)


def test_the_prior_is_the_ntk_parametrisation() -> None:
    shapes = {"conv.weight": (16, 3, 2, 2), "conv.bias": (16,), "norm.weight": (16,)}
    assert prior_deviations(shapes, "ntk") == {"conv.weight": 0.25, "conv.bias": 0.1**0.5, "norm.weight": 1.0}
    assert set(prior_deviations(shapes, "unit").values()) == {1.0}
    module = nn.ModuleDict(
        {
            "up": nn.ConvTranspose2d(64, 4, 3, groups=2),
            "attend": nn.MultiheadAttention(8, 2),
            "recur": nn.GRU(3, 5, batch_first=True),
            "gpt": Conv1D(256, 64),
        }
    )
    found = prior_deviations({name: tuple(p.shape) for name, p in module.named_parameters()}, "ntk", module)
    assert found["up.weight"] == 4**-0.5  # 2 groups of 2 outputs
    assert found["gpt.weight"] == 256**-0.5  # 64 inputs on the first axis
    assert found["attend.in_proj_weight"] == 24**-0.5
    assert found["recur.weight_ih_l0"] == 15**-0.5
    biases = ("up.bias", "attend.in_proj_bias", "attend.out_proj.bias", "recur.bias_ih_l0", "recur.bias_hh_l0")
    assert {found[name] for name in biases} == {0.1**0.5}
    # the penalty on W' of W = s W' is λ / s² on W
    both, response = both_of()
    cut = _Cut(both, labels_of(response), 1e-2, Gradients(LAST), None)
    penalties = cut.problem(0.5).penalties
    assert penalties[PREFIX + "4.weight"] * 0.2 == pytest.approx(penalties[PREFIX + "4.bias"] * 0.1)


@pytest.mark.parametrize("solver", ["newton", "auto"])
def test_the_head_is_solved_inside_each_fold(solver) -> None:
    """Labels of the rows that a fold holds out change nothing of what is predicted for them."""
    both, response = both_of(36)
    folds = torch.arange(36) % 3
    codes = response.codes.clone()
    held = (folds == 0).nonzero().squeeze(1)
    codes[held] = (codes[held] + 1) % 3
    other = Response.of("multiclass", ["a", "b", "c"], codes.numpy())
    logits = []
    for each in (response, other):
        fitter = TangentFitter(both, labels_of(each), folds, Gradients(LAST, solver=solver))
        logits.append(fitter.out_of_fold(fitter.form(1e-2), [1e-1, 1e-2])[0])
    assert torch.equal(logits[0][:, held], logits[1][:, held])
    assert not torch.equal(logits[0][:, folds == 1], logits[1][:, folds == 1])


def test_omega_is_a_copy() -> None:
    both, response = both_of()
    fit = solve_head(both, labels_of(response), 1e-2)
    head = weight_of(fit)
    design = both.design(head)
    w = Blocks({name: torch.ones(s, dtype=torch.float64) for name, s in design.shapes.items()})
    before = design.apply(w)
    head.zero_()
    torch.testing.assert_close(design.apply(w), before)


def test_omega_points_somewhere_however_strong_its_penalty() -> None:
    """Zero is then as good to rounding, but derivatives through zero are none: the direction of w as λ → ∞ stays,
    that of the data term's slope at zero."""
    both, response = both_of(40)
    weak = weight_of(solve_head(both, labels_of(response), 1e5))
    strong = weight_of(solve_head(both, labels_of(response), 1e12))
    assert strong.norm() > 0
    torch.testing.assert_close(strong / strong.norm(), weak / weak.norm(), atol=1e-4, rtol=0)
    cut = _Cut(both, labels_of(response), 1e12, Gradients(LAST), None)
    assert torch.equal(cut.head, strong)


def test_random_parts_are_taken_where_they_are_given() -> None:
    """θ₁, θ₂ or ω drawn anew, features still those of the pretrained network."""
    x, y = arrays(40, "multiclass")
    target = scan((x, y)).target
    net = network()
    features = {"embedding": Dense(net.forward(torch.from_numpy(x)))}
    task = Task(target, None, "accuracy", folds=2)
    fresh = reinitialised(net, 5, ["0", "2"])
    omega = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    stage = Gradients(LAST)
    for source, head in ((net, None), (fresh, None), (net, omega)):
        tangent = Tangent(source, LAST, torch.from_numpy(x), of="embedding")
        problem = GradientProblem(
            task, features, tangent, torch.arange(40), stage, Solve(("logistic",)), Solve(strengths=(1e-1,)), head
        )
        found = problem.solve()
        assert torch.equal(found.head, omega) == (head is not None)
        probabilities = found.predict_proba(problem)
        torch.testing.assert_close(probabilities.sum(1), torch.ones(40, dtype=torch.float64))


# ------------------------------------------------------------------------------------------ as a recipe


@pytest.mark.parametrize("kind", ["multiclass", "binary", "multilabel", "regression"])
def test_every_kind_of_labels_is_solved_scored_saved_and_predicted_from_raw_inputs(kind, tmp_path) -> None:
    x, y = arrays(60, kind)
    net = network()
    recipe = gradient_features(Gradients(LAST), (1e-1, 1e-3))
    run = regraft.adapt(rows_of(x, y, kind), net, method=recipe, folds=2)
    assert run.score.metric == {"multilabel": "map", "regression": "r2"}.get(kind, "accuracy")
    names = {name.split(",")[0] for name in (c.name for c in run.record.candidates)}
    assert "full" in names
    assert sum(c.chosen for c in run.record.candidates) == 1
    held = run.adapted.predict_proba(x[:7]).probabilities
    run.save(tmp_path / "run")
    loaded = load_artifact(tmp_path / "run", model=net)
    np.testing.assert_array_equal(loaded.predict_proba(x[:7]).probabilities, held)
    assert list(loaded.tangent.coefficients) == ["4.weight", "4.bias"]
    figure = run.record.figures["gradient"]
    assert figure["mode"] == "full"
    assert sum(figure["shares"].values()) == pytest.approx(1.0)
    assert any(finding.code == "gradient-features" for finding in run.record.findings)
    solve = next(cost for cost in run.record.costs if cost.stage == "solve")
    # the pass for the features keeps what lies below θ₂; one more of the training rows is for kernels
    assert solve.backbone_passes == pytest.approx((len(x) - 12) / len(x), abs=3.01 / len(x))


def toy_flops(rows: int) -> tuple[int, int]:
    """Of the toy's two convolutions over 6 × 6 positions, multiply and add two; its head is not the task's."""
    return 2 * 36 * 9 * 3 * 4 * rows, 2 * 36 * 9 * 4 * 6 * rows


@pytest.mark.parametrize("mode", ["activation", "gradient", "full"])
def test_a_test_split_is_predicted_the_same_by_the_problem_and_from_raw_inputs(mode) -> None:
    manifest = replace(toy_manifest(60), split=("train",) * 40 + ("test",) * 20)
    recipe = gradient_features(Gradients(mode=mode, select=("conv*",)), (1e-2,))
    run = regraft.adapt(manifest, toy_network(), method=recipe, folds=2)
    assert run.score.protocol == "test split"
    test = manifest.take(manifest.rows_of("test"))
    confidence = [float(row[5]) for row in run.rows[1:] if row[1] == "test"]
    np.testing.assert_allclose(run.predict_proba(test).confidence, confidence, rtol=1e-5)
    assert (run.adapted.tangent is None) == (mode == "activation")
    solve = next(cost for cost in run.record.costs if cost.stage == "solve")
    if mode == "activation":
        assert solve.flops == 0
    else:  # a pass for kernels, and the rows' derivatives of 3 outputs, written out for three heads
        one_pass = 60 * sum(toy_flops(rows=1))
        assert solve.flops > one_pass + 3 * 60 * 3 * toy_flops(rows=1)[1]
    own = run.record.figures["price"]["rows"][0]
    assert own["backbone_flops"] == sum(cost.flops for cost in run.record.costs)


def test_numbers_are_predicted_alike_in_every_unit() -> None:
    x, y = arrays(36, "regression")
    net, recipe = network(), gradient_features(Gradients(LAST), (1e-2,))
    one = regraft.adapt(rows_of(x, y, "regression"), net, method=recipe, folds=2)
    many = regraft.adapt(rows_of(x, y * 1000.0 + 7.0, "regression"), net, method=recipe, folds=2)
    first, second = (run.predict_proba(x[:9]).probabilities for run in (one, many))
    np.testing.assert_allclose(second, first * 1000.0 + 7.0, rtol=2e-3, atol=1.0)
    assert many.score.value == pytest.approx(one.score.value, abs=1e-3)


def test_a_training_part_whose_targets_are_all_alike_predicts_them() -> None:
    """No derivative goes through its zero head; in the choice it counts like any other."""
    x, _ = arrays(40, "regression")
    y = np.zeros(40)
    y[[3, 31]] = 1.5, 2.5
    run = regraft.adapt(rows_of(x, y, "regression"), network(), method="gradient", theta2=LAST)
    assert run.record.figures["gradient"]["parameters"]
    problem = both_of(20)[0]
    told = Labels("squared", torch.full((20, 3), 7.0, dtype=torch.float64), torch.ones(20, 1, dtype=torch.float64))
    cut = _Cut(problem, told, 1e-2, Gradients(LAST), held=problem.take(torch.arange(4)))
    assert torch.equal(cut.out(1.0), torch.zeros(4, 3, dtype=torch.float64))


def test_the_same_seed_gives_the_same_bytes(tmp_path) -> None:
    x, y = arrays(30, "multiclass")
    for name in ("a", "b"):
        recipe = gradient_features(Gradients(LAST), (1e-2,))
        regraft.adapt(rows_of(x, y), network(), method=recipe, folds=2).save(tmp_path / name)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize("solver", ["newton", "lbfgs", "dual", "adam"])
def test_the_solver_is_a_choice(solver) -> None:
    x, y = arrays(30, "multiclass")
    stage = Gradients(LAST, solver=solver, iterations=20 if solver == "adam" else None)
    run = regraft.adapt(rows_of(x, y), network(), method=gradient_features(stage, (1e-1,)), folds=2)
    assert np.isfinite(run.score.value)


# ------------------------------------------------------------------------------------------ what is refused


def adapt(stage: Gradients, net=None):
    x, y = arrays(20, "multiclass")
    return regraft.adapt(rows_of(x, y), net or network(), method=gradient_features(stage, (1e-1,)), folds=2)


def test_a_recipe_without_a_head_before_its_gradients_is_refused() -> None:
    last, first, _, gradients, second = METHODS["gradient"].stages
    with pytest.raises(RecipeError, match="Gradients comes too early"):
        Recipe("wrong", "no head", (last, first, gradients, second))
    assert isinstance(METHODS["gradient"].stages[2], SetHead)


def test_a_zero_head_is_refused_in_a_sentence() -> None:
    both, response = both_of()
    with pytest.raises(RecipeError, match="head is zero"):
        both.design(torch.zeros(3, 5, dtype=torch.float64))
    fitter = TangentFitter(both, labels_of(response), torch.arange(30) % 2, Gradients(LAST), torch.zeros(3, 5))
    with pytest.raises(RecipeError, match="head is zero"):
        fitter.out_of_fold(fitter.form(1e-2), [1.0])


def test_labels_of_a_column_that_one_fold_holds_alone_are_refused_by_its_name(tmp_path) -> None:
    """Where all weights of an output are zero, the problem has no solution of its own for it."""
    x, y = toy_arrays(40)[0], np.random.default_rng(0).normal(size=(40, 2))
    y[2:28, 1] = np.nan
    how = {"method": "gradient", "metric": "rmse", "cache": tmp_path, "seed": 3}  # one that puts both into one fold
    with pytest.raises(SolverError, match=r"'y1' fall into one fold .*two folds.*got 2 labels"):
        regraft.adapt(rows_of(x, y, "regression"), toy_network(), **how)


def test_parameters_that_are_not_there_and_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ModelError, match=r"no parameter of small matches 'layer9\.\*'"):
        adapt(Gradients(("layer9.*",)))
    with pytest.raises(RecipeError, match="no parameters are chosen"):
        Gradients(())
    for nothing in (3, [None]):
        with pytest.raises(RecipeError, match="no parameters are chosen"):
            with_gradients("gradient", None, nothing)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="'activation' has no gradients to solve for; got solver 'newton'"):
        Gradients(mode="activation", solver="newton")
    with pytest.raises(RecipeError, match="mode 'both'"):
        Gradients(mode="both")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="solver 'magic'"):
        Gradients(solver="magic")
    with pytest.raises(RecipeError, match="method 'probe' takes no gradients"):
        with_gradients("probe", "full", None)
    changed = with_gradients("gradient", "gradient", ["2.*", "4.*"]).gradients
    assert (changed.mode, changed.select) == ("gradient", ("2.*", "4.*"))
    assert with_gradients("probe", None, None) is METHODS["probe"]


@pytest.mark.parametrize(
    ("method", "mode", "select", "title"),
    [
        ("gradient", "full", None, "last layer and gradients of the topmost block"),
        ("gradient", "activation", None, "last layer"),
        ("gradient", "gradient", None, "gradients of the topmost block"),
        ("gradient", None, ["4.*", "2.*"], "last layer and gradients of 4.*, 2.*"),
        ("gradient", "gradient", "4.*", "gradients of 4.*"),
        ("tangent-gp", "activation", None, "Gaussian process of the linearised network: last layer, with error bars"),
    ],
)
def test_the_title_says_what_the_head_reads(method, mode, select, title) -> None:
    recipe = with_gradients(method, mode, select)
    assert recipe.title == title
    assert gradient_features(recipe.gradients).title == with_gradients("gradient", mode, select).title
    own = with_gradients(replace(METHODS[method], title="mine"), mode, select)
    assert own.title == "mine"


def test_without_blocks_the_topmost_layer_is_taken() -> None:
    assert list(adapt(Gradients()).adapted.tangent.coefficients) == ["4.weight", "4.bias"]
    bare = from_module(nn.Sequential(nn.Flatten(), nn.Tanh()), ArrayPreprocess((3, 6, 6)), name="bare")
    with pytest.raises(ModelError, match="no weights below its last layer"):
        adapt(Gradients(), bare)


def test_a_path_of_penalties_may_be_walked_in_any_order() -> None:
    """A stronger penalty after weaker ones, as the search asks for past its grid's edge, starts from (ω, 0)."""
    x, y = arrays(40, "multiclass")
    manifest, net = rows_of(x, y), network()
    tangent = Tangent(net, LAST, manifest, of="embedding").prepare()
    response = Response.of(manifest.target.kind, manifest.target.classes, manifest.target.values)
    both = Both(FeatureDesign({"f": Dense(tangent.outputs)}, 3), tangent, torch.arange(40), "full")
    labels = Labels.of(response, torch.full((40, 1), 1 / 40, dtype=torch.float64))
    cut = _Cut(both, labels, 1e-1, Gradients(LAST), None)
    strong, weak, again = (cut.solve(strength, 1e-6) for strength in (1e2, 1e-3, 1e2))
    assert weak.status.iterations > 0
    assert again.status.iterations == strong.status.iterations
    assert again.coefficients == strong.coefficients


def test_dropout_that_was_left_on_is_refused() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 5))
    net = from_module(body, ArrayPreprocess((3, 6, 6)), name="loud")
    x, y = arrays(20, "multiclass")
    assert np.isfinite(
        regraft.adapt((x, y), net, method=gradient_features(Gradients(("1.*",)), (1.0,)), folds=2).score.value
    )
    net.module.get_submodule("2").train()
    with pytest.raises(ModelError, match="training mode"):
        Tangent(net, ("1.*",), torch.from_numpy(x), of="embedding")


class _Cube(torch.autograd.Function):
    """x³ with a backward pass and no forward-mode rule."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context, slope):
        (x,) = context.saved_tensors
        return 3 * x.square() * slope


class _Cubed(nn.Module):
    def forward(self, x):
        return _Cube.apply(x)


def test_a_module_without_a_forward_rule_is_refused_in_a_sentence() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(108, 6), nn.Linear(6, 5), _Cubed())
    net = from_module(body, ArrayPreprocess((3, 6, 6)), name="cubed")
    with pytest.raises(ModelError, match="cubed has no forward-mode derivative"):
        adapt(Gradients(("2.*",)), net)


# ------------------------------------------------------------------------------------------ real images


def test_digits_on_the_bundled_backbone(tmp_path) -> None:
    """Gradients alone tell digits apart, and a saved model says the same of raw pictures."""
    from regraft.app.demo import digits

    data = digits().limit(60, 0)
    recipe = gradient_features(Gradients(("layer3.0.conv2.*",), mode="gradient"), (1e-3,))
    run = regraft.adapt(data, "regraft/fashion-resnet", method=recipe, folds=2)
    assert run.score.value > 0.5  # chance is a tenth
    run.save(tmp_path / "run")
    some = data.take(data.rows_of("test")[:30])
    loaded = load_artifact(tmp_path / "run").predict_proba(some).probabilities
    np.testing.assert_array_equal(loaded, run.predict_proba(some).probabilities)


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_a_named_solver_finds_the_same_model(solver, tmp_path) -> None:
    x, y = arrays(120, "regression")
    manifest = rows_of(x, y)
    recipe = gradient_features(Gradients(LAST), (1.0,))  # noise: among several penalties rounding would choose
    own, named = (
        regraft.adapt(manifest, network(), method=recipe, folds=3, cache=tmp_path, solver=given)
        for given in (None, solver)
    )
    assert own.adapted.readout.form == named.adapted.readout.form
    assert [r.record.task["recipe"][-2]["solver"] for r in (own, named)] == ["auto", solver]
    found = [r.predict_proba(manifest).probabilities for r in (own, named)]
    # of either a gap of 1e-4 F leaves a root mean square of √(2 · 1e-4 F) on its rows, F ≤ ½ in the targets' spread
    apart = (found[1] - found[0])[:108] / y[:108].std(0)
    assert np.sqrt(np.square(apart).sum(1).mean()) < 2e-2


def test_solvers_that_are_none_or_have_nothing_to_solve_are_refused() -> None:
    with pytest.raises(RecipeError, match="solver 'magic' of gradient features is unknown"):
        METHODS["gradient"].solved_by("magic")
    for method in ("tangent-gp", "finetune", "all-layers"):  # error bars choose their solver by size
        with pytest.raises(RecipeError, match=f"{method!r} has no solver to choose"):
            METHODS[method].solved_by("newton")


class Dead(nn.Module):
    """A last layer that gives every row the same; the first one does tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head((self.last(self.body(x).relu()) - 1e4).relu())


@pytest.mark.parametrize(("method", "said"), [("gradient", "head is zero"), ("tangent-gp", "tells apart")])
def test_a_last_layer_that_tells_no_rows_apart_is_named(method, said, tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    with pytest.raises((RecipeError, DataError), match=said) as caught:
        regraft.adapt(
            (x, (x[:, 0] > 0).astype(int)), from_module(Dead(), ArrayPreprocess((6,))), method=method, cache=tmp_path
        )
    assert "all-layers" in str(caught.value)


class TwoHeads(nn.Module):
    """Scores that are the mean of two heads', as in SwiftFormer and distilled DeiT."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        x = self.body(x).relu()
        return {"logits": (self.first(x) + self.second(x)) / 2}


@pytest.mark.parametrize(
    ("method", "instead"),
    [("gradient", "all-layers"), ("tangent-gp", "all-layers"), ("finetune-refit", "finetune,")],
)
def test_scores_of_several_heads_have_no_last_layer_to_give_way(method, instead, tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    rows = (x, (x[:, 0] > 0).astype(int))
    backbone = from_module(TwoHeads(), ArrayPreprocess((6,)))
    with pytest.raises(RecipeError, match=rf"one last linear layer.*use {instead}"):
        regraft.adapt(rows, backbone, method=method, cache=tmp_path)
    assert regraft.adapt(rows, backbone, method="all-layers", cache=tmp_path).score.value > 0.5


@pytest.mark.parametrize("kind", ["multiclass", "multilabel", "regression"])
def test_few_rows_give_what_products_with_the_network_give(kind, monkeypatch) -> None:
    x, y = arrays(40, kind)
    found = []
    for most in (0, Gradients.row_space):
        monkeypatch.setattr(Gradients, "row_space", most)
        run = regraft.adapt(rows_of(x, y, kind), network(), method="gradient", theta2=LAST, folds=2)
        found.append(run.predict_proba(rows_of(x, y, kind)).probabilities)
    np.testing.assert_allclose(found[1], found[0], atol=2e-3 * float(np.abs(found[0]).max()))
