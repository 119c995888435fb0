"""The table of per-row predictions: what is not known is not written, and labels are counted as scored."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import average_precision_score, r2_score, roc_auc_score
from tests.graft.frozen.test_selected import columns, figure

from regraft.data import Target, scan
from regraft.data.loose import FileTexts
from regraft.data.source import FileImages
from regraft.graft import adapt
from regraft.graft.adapted.prediction import Prediction
from regraft.graft.alike import together
from regraft.graft.evidence import backbone_findings, data_findings, findings, score_findings
from regraft.graft.evidence.context import Context
from regraft.graft.evidence.figures import _largest_errors as largest_errors
from regraft.graft.evidence.figures import _mistakes as surest_mistakes
from regraft.graft.evidence.figures import _scatter as scatter
from regraft.graft.evidence.figures import figures
from regraft.graft.evidence.findings import check
from regraft.graft.evidence.lines import prediction_rows
from regraft.graft.evidence.outputs import by_output
from regraft.graft.evidence.score_findings import no_better_than_constant
from regraft.graft.scored import Scored, scored
from regraft.heads import Response, higher_is_better, score
from regraft.network import ArrayPreprocess, from_module
from regraft.record import Candidate, Finding


def table(kind, classes, values, probabilities):
    response = Response.of(kind, classes, np.asarray(values))
    rows = np.arange(len(response))
    probabilities = torch.tensor(probabilities, dtype=torch.float64)
    scored = Scored("validation", rows, rows * 0, probabilities, response, None, ())
    named = SimpleNamespace(ids=tuple(f"row {i}" for i in rows), groups=None)
    return prediction_rows((scored, named))


def test_a_table_of_many_rows_asks_for_their_confidence_once(monkeypatch):
    """It is that of all rows: asked for by each of them, the time grew with the square of their number."""
    asked = []
    known = Prediction.confidence.fget
    monkeypatch.setattr(Prediction, "confidence", property(lambda self: asked.append(1) or known(self)))
    rows = Prediction(("a", "b", "c"), np.array([[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]]), "binary", ("x", "y")).table()
    assert [row["confidence"] for row in rows] == [0.8, 0.6, 0.5]
    assert len(asked) == 1


def test_every_regression_output_has_its_columns_and_a_missing_truth_is_empty():
    lines = table("regression", ("mass", "age"), [[0.5, np.nan], [0.0, 2.0]], [[1.0, 3.0], [4.0, 5.0]])
    assert lines == [
        ["id", "part", "fold", "truth mass", "predicted mass", "truth age", "predicted age"],
        ["row 0", "validation", 0, 0.5, 1.0, "", 3.0],
        ["row 1", "validation", 0, 0.0, 4.0, 2.0, 5.0],
    ]


def test_one_regression_output_keeps_plain_columns():
    assert table("regression", ("y",), [[0.5]], [[1.0]]) == [
        ["id", "part", "fold", "truth", "predicted"],
        ["row 0", "validation", 0, 0.5, 1.0],
    ]


def test_multilabel_truth_is_what_is_known_and_the_rest_is_named_unknown():
    lines = table("multilabel", ("a", "b", "c"), [[1, np.nan, np.nan], [1, 0, 1]], [[0.9, 0.8, 0.1], [0.2, 0.1, 0.3]])
    assert lines == [  # as sure as of the least sure label, that it holds or that it does not
        ["id", "part", "fold", "truth", "predicted", "confidence", "unknown", "p(a)", "p(b)", "p(c)"],
        ["row 0", "validation", 0, "a", "a|b", 0.8, "b|c", 0.9, 0.8, 0.1],
        ["row 1", "validation", 0, "a|c", "|", 0.7, "", 0.2, 0.1, 0.3],
    ]
    none = table("multilabel", ("a", "b"), [[0, 0], [0, np.nan]], [[0.1, 0.2], [0.1, 0.2]])
    assert [line[3] for line in none[1:]] == ["|", ""]
    sure = Prediction(("row 0", "row 1"), np.array([line[7:] for line in lines[1:]]), "multilabel", ("a", "b", "c"))
    assert sure.confidence.tolist() == [line[5] for line in lines[1:]]


def of_outputs(kind, classes, values, probabilities):
    response = Response.of(kind, classes, np.asarray(values))
    rows = np.arange(len(response))
    return by_output(Scored("test", rows, rows, torch.tensor(probabilities, dtype=torch.float64), response, None, ()))


def test_the_largest_errors_are_large_for_their_number():
    """In millions one number is off by more, always; a label that is not known is off by nothing."""
    truth = np.array([[1e6, 1.0], [2e6, 2.0], [3e6, np.nan], [4e6, 4.0], [5e6, 5.0]])
    predicted = np.array([[1.1e6, 1.0], [2.1e6, 8.0], [3.2e6, 0.0], [4.1e6, 4.5], [5e6, 5.0]])
    response = Response.of("regression", ("price", "age"), truth)
    scored = Scored("test", np.arange(5), np.zeros(5), torch.from_numpy(predicted), response, None, ())
    rows = SimpleNamespace(ids=tuple("abcde"), inputs=SimpleNamespace(modality="text", read=lambda row: f"text {row}"))
    found = largest_errors(scored, rows)
    assert [(row["id"], row["output"]) for row in found] == [
        ("b", "age"), ("c", "price"), ("a", "price"), ("d", "price")
    ]  # fmt: skip
    assert found[0] | {"thumbnail": None} == {
        "output": "age", "truth": 2.0, "predicted": 8.0, "id": "b", "thumbnail": None, "text": "text 1"
    }  # fmt: skip


def texts(count):
    ids = tuple(f"row {i}" for i in range(count))
    return SimpleNamespace(ids=ids, inputs=SimpleNamespace(modality="text", read=lambda row: f"text {row}"))


def test_an_error_is_measured_by_the_rows_whose_number_is_known():
    """Of the first number errors of 1, 1, 1 and 2, whose root mean square is √7/2: 2 is the largest multiple. Of the
    second one row alone, which is off by as much as such rows are."""
    truth = np.array([[0.0, np.nan], [0.0, np.nan], [0.0, 0.0], [0.0, np.nan]])
    predicted = np.array([[1.0, 9.0], [1.0, 9.0], [1.0, 3.0], [2.0, 9.0]])
    response = Response.of("regression", ("first", "second"), truth)
    found = largest_errors(
        Scored("test", np.arange(4), np.zeros(4), torch.from_numpy(predicted), response, None, ()), texts(4)
    )
    assert [(row["id"], row["output"]) for row in found][:2] == [("row 3", "first"), ("row 2", "second")]


def test_the_mistakes_are_those_that_the_head_was_surest_of():
    """Twelve of thirteen; right rows are none, however sure; of equally sure ones the first rows."""
    sure = [0.9, 0.6, 0.99, *[0.7] * 9, 0.65, 0.8]  # of the second class
    response = Response.of("binary", ("no", "yes"), np.array([0, 0, 1, *[0] * 11]))
    probabilities = torch.tensor([[1 - p, p] for p in sure], dtype=torch.float64)
    found = surest_mistakes(Scored("test", np.arange(14), np.zeros(14), probabilities, response, None, ()), texts(14))
    assert [row["id"] for row in found] == [f"row {i}" for i in (0, 13, *range(3, 12), 12)]
    assert found[0] == {
        "truth": "no", "predicted": "yes", "confidence": 0.9, "id": "row 0", "thumbnail": None, "text": "text 0"
    }  # fmt: skip


def test_a_picture_of_numbers_has_the_rows_whose_first_number_is_known():
    truth, predicted = (
        np.array([[np.nan, 1.0], [2.0, np.nan], [3.0, 3.0]]),
        np.array([[9.0, 1.0], [2.5, 2.0], [3.0, 4.0]]),
    )
    response = Response.of("regression", ("first", "second"), truth)
    main = Scored("test", np.arange(3), np.zeros(3), torch.from_numpy(predicted), response, None, ())
    head = SimpleNamespace(figures=lambda fit, plan: {}, varied=("λ", "strength"))
    fit = SimpleNamespace(task=SimpleNamespace(target=Target("regression", ("first", "second"), truth)))
    found = figures(SimpleNamespace(main=main, head=head), fit, texts(3), None)
    assert found["scatter"] == [{"truth": 2.0, "predicted": 2.5}, {"truth": 3.0, "predicted": 3.0}]
    assert found["scatter_rows"] == 2


@pytest.mark.parametrize(("rows", "drawn"), [(1, 1), (2000, 2000), (3999, 2000), (4001, 1334)])
def test_a_scatter_has_two_thousand_points_at_most(rows, drawn):
    values = np.arange(float(rows))[:, None]
    response = Response.of("regression", ("y",), values)
    scored = Scored("test", np.arange(rows), np.zeros(rows), torch.from_numpy(values), response, None, ())
    assert len(scatter(scored)) == drawn


def test_each_label_is_scored_on_the_rows_that_have_it():
    """Against scikit-learn; a label of one class alone has a share of positives and no more."""
    rng = np.random.default_rng(0)
    values, probabilities = rng.integers(0, 2, (40, 3)).astype(float), rng.random((40, 3))
    values[:10, 1], values[:, 2] = np.nan, 0
    first, second, third = of_outputs("multilabel", ("a", "b", "c"), values, probabilities)
    assert (first["name"], first["rows"], second["rows"]) == ("a", 40, 30)
    for cell, column, rows in ((first, 0, slice(None)), (second, 1, slice(10, None))):
        truth, said = values[rows, column], probabilities[rows, column]
        assert cell["positives"] == truth.mean()
        assert cell["average_precision"] == pytest.approx(average_precision_score(truth, said))
        assert cell["roc_auc"] == pytest.approx(roc_auc_score(truth, said))
    assert (third["positives"], third["roc_auc"]) == (0, None)


def test_each_number_is_scored_in_its_own_unit_and_one_alone_is_the_runs():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 2)) * [1.0, 100.0]
    predicted = values + rng.normal(size=(30, 2)) * [0.5, 10.0]
    for j, cell in enumerate(of_outputs("regression", ("mass", "age"), values, predicted)):
        assert cell["r2"] == pytest.approx(r2_score(values[:, j], predicted[:, j]))
        assert cell["rmse"] == pytest.approx(np.sqrt(np.square(values[:, j] - predicted[:, j]).mean()))
    assert of_outputs("regression", ("mass",), values[:, :1], predicted[:, :1]) == []


def test_each_class_has_its_recall_and_precision():
    said = [[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.4, 0.6, 0.0]]
    first, second, third = of_outputs("multiclass", ("a", "b", "c"), [0, 1, 0], said)
    assert first == {"name": "a", "rows": 2, "recall": 0.5, "precision": 1.0}
    assert second == {"name": "b", "rows": 1, "recall": 1.0, "precision": 0.5}
    assert third == {"name": "c", "rows": 0, "recall": None, "precision": None}


def test_a_row_without_a_class_has_no_truth():
    lines = table("binary", ("a", "b"), [-1, 1], [[0.9, 0.1], [0.2, 0.8]])
    assert lines[0][3:] == ["truth", "predicted", "confidence", "p(a)", "p(b)"]
    assert [line[3:] for line in lines[1:]] == [["", "a", 0.9, 0.9, 0.1], ["b", "b", 0.8, 0.2, 0.8]]


def test_every_score_can_be_computed_again_from_the_rows():
    probabilities = [[0.7, 0.3], [0.4, 0.6], [0.2, 0.8]]
    lines = table("binary", ("a", "b"), [0, 0, 1], probabilities)
    shown = np.array([[float(cell) for cell in line[6:]] for line in lines[1:]])
    response = Response.of("binary", ("a", "b"), np.array([0, 0, 1]))
    assert score("nll", response, shown) == score("nll", response, np.array(probabilities))


@pytest.mark.parametrize(("probability", "scored"), [(0.5, False), (np.nextafter(0.5, 1), True)])
def test_a_probability_of_one_half_is_counted_as_the_metrics_count_it(probability, scored):
    values = np.array([[probability, 0.2]])
    response = Response.of("multilabel", ("a", "b"), np.array([[1.0, 0.0]]))
    assert score("accuracy", response, values) == (1.0 if scored else 0.5)
    assert Prediction(("row 0",), values, "multilabel", ("a", "b")).labels == [["a"] if scored else []]
    assert table("multilabel", ("a", "b"), [[1.0, 0.0]], values.tolist())[1][4] == ("a" if scored else "|")


@pytest.mark.parametrize(
    ("kind", "metric", "low", "value", "expected"),
    [
        ("multiclass", "accuracy", 0.5, 0.6, True),  # half of the rows are of one class
        ("multiclass", "accuracy", 0.51, 0.6, False),
        ("multiclass", "accuracy", np.nan, 0.5, True),  # without an interval the score itself counts
        ("multiclass", "balanced-accuracy", 0.3, 0.5, True),  # of three classes
        ("multiclass", "balanced-accuracy", 0.4, 0.5, False),
        ("binary", "roc-auc", 0.49, 0.7, True),
        ("regression", "r2", -0.1, 0.1, True),
        ("regression", "r2", 0.05, 0.1, False),
        ("regression", "rmse", 0.1, 1.0, False),  # the mean is 1.12 away
        ("regression", "rmse", 0.1, 1.1, True),
        ("multilabel", "map", 0.33, 0.4, True),  # a quarter, a half and a quarter of the rows have the labels
        ("multilabel", "map", 0.34, 0.4, False),
        ("multilabel", "f1", 0.48, 0.5, True),  # 2/5, 2/3 and 2/5
        ("multilabel", "f1", 0.49, 0.5, False),
    ],
)
def test_an_answer_that_is_always_the_same_is_no_worse(kind, metric, low, value, expected):
    headline = SimpleNamespace(metric=metric, low=low, value=value, high=value + 0.1)
    evaluation = SimpleNamespace(main=SimpleNamespace(headline=headline, response=labels(kind)))
    assert no_better_than_constant(Context(None, 0, None, evaluation)) is expected


def labels(kind, missing=False):
    """Four rows; half of them are of class a where there are classes."""
    lost = np.nan if missing else 0.0
    if kind == "regression":
        return Response.of(kind, ("y",), np.array([lost, 1.0, 2.0, 3.0]))
    if kind == "multilabel":
        return Response.of(kind, ("a", "b", "c"), np.array([[1, 0, 0], [0, 1, lost], [lost, 1, 1], [0, lost, 0]]))
    if kind == "segmentation":
        return Response.of(kind, ("a", "b", "c"), np.array([[5, 1, 0], [2, 2, 0], [0, 6, 0], [8, 0, 0]]))
    codes = np.where(missing, [-1, 0, 0, 0], 0) + np.array(CODES[kind])
    return Response.of(kind, ("a", "b", "c", "d")[: 2 if kind == "binary" else 4], codes)


CODES = {"binary": [0, 0, 1, 1], "multiclass": [0, 0, 1, 2]}  # of four classes one does not occur


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        *itertools.product(("binary", "multiclass"), ("accuracy", "balanced-accuracy", "f1", "roc-auc", "map")),
        *itertools.product(("multilabel",), ("accuracy", "balanced-accuracy", "f1", "roc-auc", "map")),
        *itertools.product(("regression",), ("r2", "rmse")),
        *itertools.product(("segmentation",), ("accuracy", "balanced-accuracy", "f1", "miou")),
    ],
)
@pytest.mark.parametrize("missing", [False, True])
def test_no_constant_answer_scores_more_than_is_said(kind, metric, missing):
    """What the finding takes for the best constant's score is that, by the metric itself."""
    response = labels(kind, missing)
    answers = np.eye(response.n_outputs) if kind != "regression" else np.linspace(0, 3, 31)[:, None]
    if kind == "multilabel":
        answers = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    whole = response.values.numpy()[:, :, None] if kind == "segmentation" else 1.0  # pixels by class, all of one answer
    best = (max if higher_is_better(metric) else min)(
        score(metric, response, np.broadcast_to(whole * answer, response.predicted_shape)) for answer in answers
    )
    scored = SimpleNamespace(headline=SimpleNamespace(metric=metric), response=response)
    context = Context(None, 0, None, SimpleNamespace(main=scored))
    assert score_findings._constant_score(context) == pytest.approx(best)


def test_rows_that_are_all_alike_are_told_by_other_findings():
    one = Response.of("binary", ("a", "b"), np.array([1, 1, 1]))
    numbers = Response.of("regression", ("y",), np.array([2.0, 2.0, np.nan]))
    labels = Response.of("multilabel", ("a", "b"), np.array([[1, 0], [1, np.nan]]))
    for response, metrics in ((one, ("accuracy", "balanced-accuracy")), (numbers, ("rmse",)), (labels, ("map", "f1"))):
        for metric in metrics:
            headline = SimpleNamespace(metric=metric, low=0.4, value=1.0, high=1.0)
            scored = SimpleNamespace(headline=headline, response=response)
            assert not no_better_than_constant(Context(None, 0, None, SimpleNamespace(main=scored)))


@pytest.mark.parametrize(
    ("kind", "metric", "low", "value", "said"),
    [
        ("multiclass", "accuracy", 0.5, 0.6, "has an interval that reaches down to always saying 'a'"),
        ("multiclass", "accuracy", 0.3, 0.4, "is no better than always saying 'a'"),
        ("multiclass", "balanced-accuracy", 0.2, 0.33, "is no better than that of one answer for every row"),
        ("regression", "r2", -4e5, -3e5, "is no better than that of one answer for every row"),
        ("regression", "r2", -0.1, 0.2, "has an interval that reaches down to that of one answer for every row"),
        ("multiclass", "accuracy", 0.51, 0.6, ""),
        ("regression", "r2", 0.1, 0.2, ""),
        ("regression", "rmse", 0.1, 0.2, ""),
        ("regression", "rmse", 0.8, 0.9, "has an interval that reaches up to that of one answer for every row"),
        ("regression", "rmse", 1.0, 1.2, "is no better than that of one answer for every row"),
    ],
)
def test_a_score_that_one_answer_reaches_is_a_warning(kind, metric, low, value, said, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._constant,))
    headline = SimpleNamespace(metric=metric, low=low, value=value, high=value + 0.3)
    scored = SimpleNamespace(headline=headline, response=labels(kind))
    found = check(Context(None, 0, None, SimpleNamespace(main=scored)))
    assert [finding.title for finding in found] == ([f"The score {said}."] if said else [])
    if found:
        (warning,) = found
        assert (warning.severity, warning.value, warning.low) == ("warning", value, low)
        assert warning.code == ("no-better-than-majority" if metric == "accuracy" else "no-better-than-constant")


@pytest.mark.parametrize(
    ("classes", "label_type", "codes"),
    [
        (("Rose", "rose", "tulip"), "str", ["classes-alike"]),
        (("hot dog", "hot-dog"), "str", ["classes-alike"]),
        (("e\u0301t\u00e9", "\u00e9te\u0301"), "str", ["classes-alike"]),
        (("NaN", "cat"), "str", ["class-reads-as-missing"]),
        (("none", "some"), "str", []),
        (("-1", "1"), "int", []),
        (("-a", "a"), "str", []),
    ],
)
def test_names_that_may_be_mistakes_are_told(classes, label_type, codes, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._names,))
    target = Target("multiclass", classes, np.arange(len(classes)), label_type=label_type)
    context = Context(SimpleNamespace(labels=target), 0, None, None)
    found = check(context)
    assert [finding.code for finding in found] == codes
    if "classes-alike" in codes:
        assert f"{classes[0]!r} = {classes[1]!r}" in found[0].detail


@pytest.mark.parametrize(
    ("class_weight", "weighs", "advised"), [(None, True, True), ("balanced", True, False), (None, False, False)]
)
def test_weights_are_advised_where_classes_have_none_and_could(class_weight, weighs, advised, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._classes,))
    target = Target("multiclass", ("a", "b"), np.repeat([0, 1], [70, 6]))
    task = SimpleNamespace(target=target, metric="accuracy", class_weight=class_weight)
    (found,) = check(Context(None, 0, SimpleNamespace(task=task, weighs_classes=weighs), None))
    assert found.code == "class-imbalance"
    assert ("--class-weight" in found.advice) == advised


@pytest.mark.parametrize(("rows", "said"), [(1, "The one row that scores is"), (3, "All 3 rows that score are")])
def test_rows_of_one_class_are_counted(rows, said, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._one_class,))
    response = Response.of("binary", ("a", "b"), np.zeros(rows, dtype=int))
    main = SimpleNamespace(response=response, rows=np.arange(rows), headline=SimpleNamespace(metric="accuracy"))
    (found,) = check(Context(None, 0, None, SimpleNamespace(main=main)))
    assert found.title == f"{said} of class 'a'."


@pytest.mark.parametrize(
    ("kind", "metric", "scored", "said"),
    [
        ("multilabel", "map", [[1, 0], [0, 0]], ["rare"]),
        ("multilabel", "map", [[1, 0], [0, 1]], []),
        ("multilabel", "map", [[1, np.nan], [0, 1]], ["rare"]),
        ("multilabel", "accuracy", [[1, 0], [0, 0]], []),
        ("multilabel", "map", [[1, 0], [1, 0]], []),  # no label is left to speak of
        ("multiclass", "balanced-accuracy", [0, 1, 0], ["c"]),
        ("multiclass", "balanced-accuracy", [0, 1, 2], []),
        ("multiclass", "accuracy", [0, 1, 0], []),
        ("multilabel", "f1", [[1, 0], [0, 0]], ["rare"]),
        ("multilabel", "f1", [[1, 1], [0, 1]], []),
        ("multilabel", "miou", [[1, 0], [0, 0]], ["rare"]),
        ("multilabel", "miou", [[1, 1], [0, 1]], []),
        ("multiclass", "f1", [0, 1, 0], ["c"]),
        ("segmentation", "miou", [[5, 1, 0], [3, 0, 0]], ["c"]),
        ("segmentation", "miou", [[5, 1, 0], [3, 0, 2]], []),
        ("segmentation", "accuracy", [[5, 1, 0], [3, 0, 0]], []),
        ("regression", "r2", [[1, 0.3, 0], [2, 0.3, 5]], ["b"]),
        ("regression", "r2", [[1, np.nan, 0], [2, np.nan, 5]], ["b"]),
        ("regression", "r2", [[1, 0.3, 0], [2, 0.4, 5]], []),
        ("regression", "rmse", [[1, np.nan, 0], [2, np.nan, 0]], ["b"]),
        ("regression", "coverage", [[1, np.nan, 0], [2, np.nan, 0]], []),  # a share of all targets
    ],
)
def test_what_a_mean_over_classes_passes_over_is_told(kind, metric, scored, said, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._unscored,))
    names = ("often", "rare") if kind == "multilabel" else ("a", "b", "c")
    every = {
        "multilabel": np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32),
        "segmentation": np.array([[5, 1, 0], [3, 0, 2]]),
    }.get(kind, np.array([0, 1, 2]))
    response, headline = Response.of(kind, names, np.array(scored)), SimpleNamespace(metric=metric)
    predicted = torch.diag_embed(response.values) if kind == "segmentation" else torch.zeros(response.values.shape)
    main = SimpleNamespace(response=response, probabilities=predicted, headline=headline)
    fit = SimpleNamespace(task=SimpleNamespace(target=Target(kind, names, every)))
    found = check(Context(None, 0, fit, SimpleNamespace(main=main)))
    assert [finding.code for finding in found] == ["unscored-classes"] * len(said)
    assert all(name in finding.detail for name, finding in zip(said, found))


@pytest.mark.parametrize("metric", ["f1", "map", "roc-auc", "balanced-accuracy", "miou"])
@pytest.mark.parametrize("kind", ["multiclass", "multilabel"])
@pytest.mark.parametrize("column", ["none", "all"])
def test_what_a_mean_makes_of_what_is_absent_is_said_as_it_is(kind, metric, column, monkeypatch):
    """Beside the mean over the others, of predictions that name what is absent."""
    several = kind == "multilabel"
    if column == "all" and not several:
        pytest.skip("there is no such case")
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._unscored,))
    rng = np.random.default_rng(0)
    said, names = rng.dirichlet(np.ones(3), 40), ("a", "b", "c")
    if several:
        said = rng.random((40, 3))
        labels = (rng.random((40, 3)) < 0.5).astype(float)
        labels[:, 2] = column == "all"
        every = np.vstack([labels, 1 - labels])
        others = score(metric, Response.of(kind, names[:2], labels[:, :2]), said[:, :2])
    else:
        labels, every = rng.integers(0, 2, 40), np.arange(3)
        recall = [(said.argmax(1) == c)[labels == c].mean() for c in (0, 1)]
        precision = [(labels == c)[said.argmax(1) == c].mean() for c in (0, 1)]
        others = {
            "f1": np.mean([2 * r * p / (r + p) for r, p in zip(recall, precision)]),
            "miou": np.mean([1 / (1 / r + 1 / p - 1) for r, p in zip(recall, precision)]),
            "balanced-accuracy": np.mean(recall),
            "map": np.mean([average_precision_score(labels == c, said[:, c]) for c in (0, 1)]),
            "roc-auc": np.mean([roc_auc_score(labels == c, said[:, c]) for c in (0, 1)]),
        }[metric]
    response = Response.of(kind, names, labels)
    counted_as = {("f1", "none"): 0, ("miou", "none"): None if several else 0, ("map", "all"): 1}.get((metric, column))
    value = others if counted_as is None else (2 * others + counted_as) / 3
    fit = SimpleNamespace(task=SimpleNamespace(target=Target(kind, names, every)))
    headline = SimpleNamespace(metric=metric)
    main = SimpleNamespace(response=response, probabilities=torch.from_numpy(said), headline=headline)
    found = check(Context(None, 0, fit, SimpleNamespace(main=main)))
    if metric in ("f1", "miou") and column == "all":  # as of any label
        assert not found
        return
    assert score(metric, response, said) == pytest.approx(value)
    assert ("speaks of the others alone" in found[0].detail) == (
        counted_as is None and (metric, several) != ("map", True)
    )
    if counted_as is not None:
        assert f"as {counted_as}" in found[0].detail


def test_labels_of_few_rows_are_told_as_classes_are(monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._classes,))
    values = np.zeros((60, 3), dtype=np.float32)
    values[:30, 0], values[:4, 1], values[5, 1] = 1, 1, np.nan
    task = SimpleNamespace(target=Target("multilabel", ("often", "rare", "never"), values), metric="map")
    (found,) = check(Context(None, 0, SimpleNamespace(task=task), None))
    assert (found.code, found.value, found.detail) == ("few-rows-per-class", 4, "Fewest: rare")


def test_classes_of_masks_in_few_images_are_told_however_many_pixels_they_have(monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._classes,))
    pixels = np.zeros((60, 5), dtype=np.int64)
    pixels[:, 0], pixels[:4, 1], pixels[:5, 2], pixels[7:9, 3] = 90, 1_000, 1, 5
    target = Target("segmentation", ("road", "pole", "sign", "bird", "never"), pixels)
    fit = SimpleNamespace(task=SimpleNamespace(target=target, metric="miou"))
    (found,) = check(Context(None, 0, fit, None))
    assert (found.code, found.severity, found.value, found.unit) == ("few-rows-per-class", "advice", 2, "images")
    assert found.title == "2 classes are in fewer than 5 images that were learnt from."
    assert found.detail == "Fewest: pole, bird"


@pytest.mark.parametrize(("high", "value", "said"), [(0.15, 0.2, True), (0.25, 0.2, False), (0.05, 0.09, False)])
@pytest.mark.parametrize("headline", ["ece", "accuracy"])
def test_probabilities_are_called_wrong_where_chance_does_not_give_as_much(headline, high, value, said, monkeypatch):
    """More than a tenth on average, whatever a run is judged by; a few rows' calibration error is large by chance."""
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._fit,))
    ece = SimpleNamespace(metric="ece", value=value)
    head = SimpleNamespace(status=SimpleNamespace(converged=True), candidates=())
    scores = {"headline": ece, "others": ()}
    if headline != "ece":
        scores = {"headline": SimpleNamespace(metric=headline, value=0.5), "others": (ece,)}
    main = SimpleNamespace(**scores, response=SimpleNamespace(codes=None, kind="multilabel"), calibrated=(0.03, high))
    found = check(Context(None, 0, None, SimpleNamespace(head=head, main=main)))
    assert [finding.code for finding in found] == (["poorly-calibrated"] if said else [])
    if said:
        assert found[0].value == value
        assert found[0].detail.endswith("off by 3 to 15 points on these rows.")  # however many


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
@pytest.mark.parametrize("sure", [0.65, 0.98])
def test_probabilities_of_classes_and_of_labels_are_judged(kind, sure, monkeypatch):
    """Two in three are right, as the probabilities say or not."""
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._fit,))
    right = np.arange(300) % 3 > 0
    if kind == "multilabel":
        said = torch.full((300, 2), sure)
        response = Response.of(kind, ("a", "b"), np.stack([right, right], 1).astype(float))
    else:
        classes = ("a", "b", "c")[: 2 if kind == "binary" else 3]
        rest = (1 - sure) / (len(classes) - 1)
        said = torch.tensor([[sure] + [rest] * (len(classes) - 1)]).repeat(300, 1)
        response = Response.of(kind, classes, np.where(right, 0, 1))
    main = scored("test", "nll", response, said, rows=np.arange(300), groups=None, seed=0, protocol="")
    (ece,) = (score for score in main.others if score.metric == "ece")
    assert ece.value == pytest.approx(abs(2 / 3 - sure), abs=1e-6)
    head = SimpleNamespace(status=SimpleNamespace(converged=True), candidates=())
    found = check(Context(None, 0, None, SimpleNamespace(main=main, validation=main, test=None, head=head)))
    assert ("poorly-calibrated" in [finding.code for finding in found]) == (sure > 0.9)


@pytest.mark.parametrize(("deviation", "said"), [(1.0, False), (3.0, False), (0.75, True)])
def test_error_bars_are_called_narrow_where_chance_does_not_leave_out_as_many(deviation, said, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", score_findings.SCORE_CHECKS[-2:])
    truth = torch.as_tensor(np.random.default_rng(0).normal(size=(200, 1)))
    main = scored(
        "test",
        "r2",
        Response.of("regression", ("y",), truth.numpy()),
        torch.zeros(200, 1),
        rows=np.arange(200),
        groups=None,
        seed=0,
        protocol="",
        spread=torch.full((200, 1), deviation),
    )
    found = check(Context(None, 0, None, SimpleNamespace(main=main, validation=main, test=None)))
    assert [(f.code, f.severity) for f in found] == ([("error-bars-narrow", "warning")] if said else [])
    if said:  # of normal targets 2 Phi(1.645 * 0.75) - 1 = 78 % are expected
        assert found[0].low < 0.783 < found[0].high < 0.9


@pytest.mark.parametrize(
    ("chosen", "error", "varied", "said"),
    [
        (0, 0.1, "penalty", "A smaller one was not tried; the last step gained 0.1000."),
        (2, 0.1, "penalty", "A larger one was not tried; the last step gained 0.1000."),
        (1, 0.1, "penalty", None),
        (0, np.nan, "penalty", "a weaker one is tried only while"),
        (2, np.nan, "penalty", None),  # where a draw of the rows said to begin
        (2, np.nan, "learning rate", "A larger one was not tried"),
    ],
)
def test_a_choice_at_the_end_of_its_grid_is_told(chosen, error, varied, said, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._fit,))
    cells = tuple(
        Candidate("ridge", 10.0 ** (k - 3), 0.7 - 0.1 * abs(k - chosen), error, k == chosen) for k in range(3)
    )
    head = SimpleNamespace(status=SimpleNamespace(converged=True), candidates=cells, varied=("λ", varied))
    main = SimpleNamespace(
        headline=SimpleNamespace(metric="accuracy"),
        others=(),
        response=SimpleNamespace(codes=None, kind="multilabel"),
        calibrated=None,
    )
    found = check(Context(None, 0, None, SimpleNamespace(head=head, main=main)))
    assert [finding.code for finding in found] == ([] if said is None else ["strength-at-edge"])
    if said is not None:
        assert said in found[0].detail


@pytest.mark.parametrize(("used", "said"), [(2, ["The rows are cut into 2 folds, not 5."]), (5, []), (0, [])])
def test_fewer_folds_than_asked_for_are_told(used, said, monkeypatch):
    found = of_folds(monkeypatch, "binary", None, None, used)
    assert [finding.title for finding in found] == said


@pytest.mark.parametrize(
    ("kind", "groups", "test", "detail", "advice"),
    [
        ("multiclass", None, None, "no more rows of any class to", "Heads that score are"),
        ("multiclass", ("g",), None, "no more groups, or rows of any class to", "Heads that score are"),
        ("regression", None, None, "no more rows to", "Heads that score are"),
        ("regression", ("g",), "rows", "no more groups to", "Heads that choose the settings are"),
    ],
)
def test_why_there_are_fewer_folds(kind, groups, test, detail, advice, monkeypatch):
    (found,) = of_folds(monkeypatch, kind, groups, test, 2)
    assert detail in found.detail
    assert found.advice.startswith(advice)


class Sized(SimpleNamespace):
    def __init__(self, task, rows):
        super().__init__(task=task, rows=rows)

    def __len__(self):
        return self.rows


def of_folds(monkeypatch, kind, groups, test, used):
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._folds,))
    task = SimpleNamespace(folds=5, groups=groups, target=SimpleNamespace(kind=kind))
    fit = Sized(task, 20)
    scored = SimpleNamespace(fold=np.arange(20) % used if used else np.full(20, -1))
    return check(Context(None, 0, fit, SimpleNamespace(validation=scored, test=test)))


def test_labels_that_no_row_or_every_row_has_are_named(monkeypatch):
    """Rows that score count, too: of a label that they alone tell apart, nothing was learnt, and much is measured."""
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._one_valued, score_findings._unlearnt))
    names = ("a", "b", "c", "d", "e")
    values = np.array([[1.0, 0.0, 1.0, np.nan, 1.0], [0.0, np.nan, 1.0, 0.0, np.nan], [1.0, 0.0, 1.0, 1.0, 1.0]])

    def found(scored):
        main = SimpleNamespace(response=Response.of("multilabel", names, np.array(scored)))
        fit = SimpleNamespace(task=SimpleNamespace(target=Target("multilabel", names, values)))
        return [(one.code, one.title, one.detail) for one in check(Context(None, 0, fit, SimpleNamespace(main=main)))]

    same = ("labels-one-valued", "3 labels of 5 are the same in all labelled rows.", "b, c, e")
    assert found(values[:1]) == [same]
    (same, new) = found([[1, 1, 1, 1, 0], [0, 0, np.nan, 1, 0]])
    assert same == ("labels-one-valued", "1 label of 5 is the same in all labelled rows.", "c")
    title = "2 labels have a value among the rows that score that no row has that was learnt from."
    assert new == ("classes-unlearnt", title, "Nothing was learnt of them, and a mean over labels counts them: b, e.")


@pytest.mark.parametrize(
    ("groups", "part", "rows", "said"),
    [
        (list("aabbccdd"), "validation", 8, "Only 4 groups"),
        (list("aaaaaaaa"), "validation", 8, "Only 1 group"),
        (list("abcdefgh") * 2, "validation", 16, None),  # eight are enough
        (list("abcd"), "validation", 4, None),  # groups of one row each are no groups
        (None, "validation", 8, None),
        (list("abcdefgh") * 2 + list("xxyy"), "test", 4, "Only 2 groups"),  # those of the rows that score
    ],
)
def test_few_groups_that_score_are_told(groups, part, rows, said, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (score_findings._few_groups,))
    split = ["train"] * 16 + ["test"] * 4 if part == "test" else ["train"] * rows
    manifest = SimpleNamespace(groups=groups, split=split)
    response = SimpleNamespace(present=torch.ones(rows, dtype=torch.bool))
    main = SimpleNamespace(part=part, rows=np.arange(rows), response=response)
    found = check(Context(manifest, 0, None, SimpleNamespace(main=main)))
    assert [f.title.partition(":")[0] for f in found] == ([] if said is None else [said])
    assert all(f.code == "few-groups" and f.severity == "warning" for f in found)


def test_columns_that_were_not_read_are_told(monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._left_out,))
    columns = {"caption": ["a", "b"] * 2, "text": list("cdef"), "label": [0, 1] * 2, "when": [1, 2] * 2}
    rows = pa.table({**columns, "split": ["train", "train", "test", "test"]})
    (found,) = check(Context(scan(rows), 0, None, None))
    assert (found.code, found.severity, found.value) == ("columns-unread", "info", 2)
    assert found.title == "2 columns were not read: caption, when."
    assert found.detail == "Read: text as input; label as label; split as split."
    assert check(Context(scan(rows.drop(["caption", "when"])), 0, None, None)) == ()


def test_blank_cells_of_the_part_and_the_group_are_told(monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._blank_cells,))
    columns = {"text": list("aabcdef"), "label": [0, 0, 1, 0, 1, 0, 1], "who": ["p", None, "", "q", "p", " ", "q"]}
    columns["split"] = ["train", "train", "", "test", "test", None, "train"]
    rows = together(None, scan(pa.table(columns), group="who"))  # the second row is a copy of the first, in its group
    parts, groups = check(Context(rows, 0, None, None))
    assert (parts.code, parts.severity, parts.value) == ("rows-without-part", "info", 2)
    assert parts.title == "2 rows name no part and were taken for training: row 2, row 5."
    assert (groups.code, groups.severity, groups.value) == ("rows-without-group", "info", 2)
    assert groups.title == "2 rows name no group, and each is a group of its own: row 2, row 5."
    (only,) = check(Context(rows.take([2, 3, 4]), 0, None, None))[:1]  # the others were left out
    assert only.title == "1 row names no part and was taken for training: row 2."
    again = dataclasses.replace(
        rows, ids=tuple("row 2" if name == "row 3" else name for name in rows.ids)
    )  # of a test row's picture
    assert check(Context(again, 0, None, None))[0].value == 2
    whole = {**columns, "who": list("ppqqrrs"), "split": ["train"] * 5 + ["test"] * 2}
    assert check(Context(scan(pa.table(whole), group="who"), 0, None, None)) == ()


def test_inputs_that_are_named_like_labels_are_told(monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._labels_read,))
    rows = pa.table({"a": [0.1, 0.2] * 2, "Target": [1.0, 2.0] * 2, "grade": [0, 1] * 2})
    (found,) = check(Context(scan(rows, label="grade"), 0, None, None))
    assert (found.code, found.severity, found.value) == ("labels-among-inputs", "warning", 1)
    assert found.title == "1 input has the name of a label: Target."
    assert check(Context(scan(rows.drop(["Target"]), label="grade"), 0, None, None)) == ()


@pytest.mark.parametrize(
    ("empty", "inputs", "said"),
    [
        ((), FileImages([]), []),
        (("lily/",), FileImages([]), ["1 folder of a class or a part holds no image: lily/."]),
        (("lily/",), FileTexts([]), ["1 folder of a class or a part holds no text: lily/."]),
        (tuple("abcdef"), None, ["6 folders of a class or a part hold no image: a, b, c, d, e and 1 more."]),
    ],
)
def test_folders_without_a_file_are_told(empty, inputs, said, monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", (data_findings._left_out,))
    found = check(Context(SimpleNamespace(skipped=(), empty=empty, inputs=inputs, roles={}), 0, None, None))
    assert all((".txt" in finding.detail) == isinstance(inputs, FileTexts) for finding in found)
    assert [finding.title for finding in found] == said
    assert all(finding.severity == "warning" for finding in found)


def test_a_class_of_masks_of_which_no_pixel_was_found_is_named():
    pairs = torch.zeros(5, 4, 4)  # images, pixels by class and predicted class
    pairs[:, 0, 0], pairs[:, 1, 0], pairs[0, 2, 0], pairs[:, 3, 0] = 9.0, 4.0, 1.0, 2.0
    response = SimpleNamespace(kind="segmentation", classes=tuple("abcd"), values=pairs.sum(2), codes=None)
    main = SimpleNamespace(response=response, probabilities=pairs)
    target = SimpleNamespace(values=np.array([[9, 4, 1, 0]]))  # d was in none of the masks that were learnt from
    fit = SimpleNamespace(task=SimpleNamespace(target=target))
    context = Context(None, 0, fit, SimpleNamespace(main=main))
    assert score_findings._never_right(context) == ["b"]  # c is in one image alone
    (found,) = score_findings._unlearnt(context)
    assert (found.code, found.value) == ("classes-unlearnt", 1)
    assert found.detail.endswith(": d.")


def test_outputs_that_are_not_read_are_told(monkeypatch):
    monkeypatch.setattr(findings, "_CHECKS", backbone_findings.BACKBONE_CHECKS)
    for unread, said in (((), []), (((4,), (), (3, 8, 8)), ["Not read, of a row: 4, one number, 3 × 8 × 8."])):
        network = SimpleNamespace(unread=unread)
        found = check(Context(None, 0, None, None, network=network))
        assert [(one.code, one.value, one.detail) for one in found] == [("first-output-read", 3, each) for each in said]
        assert all(one.title.startswith("Of the backbone's 4 outputs the first was read") for one in found)
    assert check(Context(None, 0, None, None)) == ()


def test_a_run_on_the_first_of_two_outputs_says_so(tmp_path):
    class Two(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x), x

    x, y = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 2
    for kind, times in ((Two, 1), (torch.nn.Sequential, 0)):
        layers = torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)
        network = from_module(kind(*layers), ArrayPreprocess((4,)))
        run = adapt((x, y), network, method="probe", cache=tmp_path)
        assert [found.code for found in run.record.findings].count("first-output-read") == times


@pytest.mark.parametrize(("kept", "said"), [(True, set()), (False, {"early-layers-chosen", "selection-saves-little"})])
def test_a_choice_of_features_is_read_as_one_of_a_trained_network_where_a_training_is_kept(kept, said, monkeypatch):
    """Also one that was to judge: where head probing on all rows diverges, no training is the final one."""
    monkeypatch.setattr(findings, "_CHECKS", (findings._own,))
    for guess in ("no_better_than_constant", "of_one_class"):
        monkeypatch.setattr(findings, guess, lambda context: False)
    chosen = figure(columns=columns(early=[0, 1, 2], late=[0]))
    figures = {"selection": chosen, "training": {"runs": [{"role": "twin", "kept": kept}]}}
    found = check(Context(None, 0, None, SimpleNamespace(head=SimpleNamespace(findings=list)), figures))
    assert {finding.code for finding in found} - {"features-kept", "low-level-target"} == said


@pytest.mark.parametrize(("codes", "notes", "said"), [
    ([0, 0, 1, 1], (), True), ([1, 1, 1, 1], (), False), ([0, 0, 1, 1], ("one-class-chooses",), False),
])  # fmt: skip
def test_rows_of_one_class_tell_nothing_of_the_features_that_were_kept(codes, notes, said, monkeypatch):
    """A score that any answer reaches, or a choice that any training wins, is no reason to read depths."""
    monkeypatch.setattr(findings, "_CHECKS", (findings._own,))
    main = SimpleNamespace(
        headline=SimpleNamespace(metric="accuracy", low=0.8, value=1.0, high=1.0),
        response=Response.of("binary", ("a", "b"), np.array(codes)),
    )
    head = SimpleNamespace(findings=lambda: [Finding(code, "", "warning") for code in notes])
    figures = {"selection": figure(columns=columns(early=[0, 1, 2], late=[0]))}
    found = {finding.code for finding in check(Context(None, 0, None, SimpleNamespace(head=head, main=main), figures))}
    assert ({"early-layers-chosen", "low-level-target"} <= found) is said
    assert bool({"early-layers-chosen", "low-level-target"} & found) is said
