"""Columns go by their names: in parts, in predictions and in scores."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
import torch
from torch import nn

from regraft.data import scan, with_columns
from regraft.errors import DataError, ModelError
from regraft.graft import Options, Scope, adapt, diagnose, head_exchange, load_artifact, score_on
from regraft.network import ArrayPreprocess, ImagePreprocess, from_module

NAMES = ("a", "b", "c", "d")


def table(names: tuple[str, ...] = NAMES, seed: int = 0, rows: int = 60, **more: list) -> pa.Table:
    """Numbers of different sizes; the class follows the first two."""
    values = np.random.default_rng(seed).normal(size=(rows, 4)) * (1, 2, 5, 10)
    label = ["p" if row[0] + row[1] > 0 else "q" for row in values]
    columns = {name: values[:, NAMES.index(name)] if name in NAMES else np.zeros(rows) for name in names}
    return pa.table({**columns, "label": label, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    network = from_module(module, preprocess=ArrayPreprocess((4,)))
    options = Options(cache=tmp_path_factory.mktemp("cache"))
    return adapt(table(), network, method="probe", options=options), network, options


def test_predictions_go_by_name(run, tmp_path: Path):
    done, network, _ = run
    expected = done.predict(table())
    assert done.predict(table(("d", "c", "b", "a"))) == expected
    assert (
        done.predict(table(("b", "extra", "a", "d", "c"))) == expected
    )  # what the model was not made of is left aside
    assert done.predict(np.stack([table()[name].to_numpy() for name in NAMES], 1)) == expected  # no names: by position
    done.save(tmp_path / "run")
    loaded = load_artifact(tmp_path / "run", model=network)
    assert loaded.columns == NAMES
    assert loaded.predict(table(("c", "d", "a", "b"))) == expected


def test_a_frame_beside_its_labels_keeps_the_names_of_its_columns(run):
    whole = table()
    frame, labels = whole.select(NAMES).to_pandas(), whole["label"].to_pylist()
    assert scan((frame, labels)).inputs.columns == scan((whole.select(NAMES), labels)).inputs.columns == NAMES
    other = frame[["c", "d", "a", "b"]]
    got, expected = (score_on(run[0].adapted, data).scored.probabilities for data in ((other, labels), whole))
    np.testing.assert_array_equal(got, expected)
    again = adapt((frame, labels), run[1], method="probe", options=run[2])
    assert again.predict(other) == again.predict(frame) == run[0].predict(whole)
    frame.columns = ["a", "a", "b", "c"]
    assert scan((frame, labels)).inputs.columns == ()  # by position, as arrays


def test_a_column_that_is_not_there_is_named(run):
    done, _, _ = run
    with pytest.raises(DataError, match=r"has no column 'a'; expected a, b, c, d; got w, b, c, d"):
        done.predict(table(("w", "b", "c", "d")))


def test_a_column_that_holds_no_numbers_is_refused(run):
    done, _, _ = run
    for cell, do in (("0,5", "write decimal points: 0.5"), ("n/a", "correct it")):
        other = table().set_column(1, "b", pa.array(["1.5"] * 59 + [cell]))
        with pytest.raises(DataError, match=f"'b' begins with '1.5' and has '{cell}' in row 59. To mend it: {do}"):
            done.predict(other)


def test_a_single_column_may_have_any_name():
    values = [[1.0, 2.0], [3.0, 4.0]]
    manifest = scan(pa.table({"v": values}), labelled=False)
    assert with_columns(manifest, ("x",)) is manifest


def test_scores_go_by_name(run):
    done, _, _ = run
    plain, turned = (score_on(done.adapted, table(names, seed=1)) for names in (NAMES, NAMES[::-1]))
    np.testing.assert_array_equal(plain.scored.probabilities, turned.scored.probabilities)


def test_exchanged_heads_go_by_name(run):
    models = [run[0].adapted, run[0].adapted]
    plain, turned = (head_exchange(models, scan(table(names, seed=1))) for names in (NAMES, NAMES[::-1]))
    assert turned.equal(plain)


def test_diagnoses_of_a_run_go_by_its_names_and_a_source_by_those_of_the_target(run, tmp_path: Path):
    _, network, options = run
    adapt(table(), network, method="lp-ft", steps=2, lr=0.01, cache=options.cache).save(tmp_path / "run", embed=False)
    trained, sourced = [], []
    for names in (NAMES, NAMES[::-1]):
        shared = {"scope": Scope(rows=24, top=2, points=3), "options": options}
        record = diagnose(table(names), network, run=tmp_path / "run", checks=("curvature",), **shared)
        trained.append([record.figures["curvature"]["subjects"][0][key] for key in ("loss", "eigenvalues")])
        record = diagnose(table(), network, source=table(names, seed=1), checks=("feasibility",), **shared)
        sourced.append(record.figures["feasibility"]["gradient"]["value"])
    assert trained[1] == trained[0]
    assert sourced[1] == sourced[0]


def test_what_else_a_table_holds_is_left_aside(run, tmp_path: Path):
    done, _, _ = run
    others = {"day": ["2024-01-02"] * 60, "text": ["x"] * 60}
    more = table(**others).rename_columns([*NAMES, "kind", *others])
    np.testing.assert_array_equal(done.predict(more), done.predict(table()))
    scored = score_on(done.adapted, table(**others))
    np.testing.assert_array_equal(scored.scored.probabilities, score_on(done.adapted, table()).scored.probabilities)


def pictures(seed: int, **names: bool) -> pa.Table:
    """Encoded pictures in named columns, bright ones of one class where the name says so; else of one grey."""
    bright = np.random.default_rng(seed).integers(0, 2, 40)
    columns: dict[str, list] = {}
    for name, telling in names.items():
        columns[name] = []
        for row, value in enumerate(bright):
            data = io.BytesIO()
            PIL.Image.new("RGB", (16, 16), (100 + 100 * int(value) * telling, row, 7)).save(data, "PNG")
            columns[name].append(data.getvalue())
    return pa.table({**columns, "label": ["p" if value else "q" for value in bright]})


def test_the_column_that_was_named_is_read_again(tmp_path: Path):
    """Of two columns of pictures the one with the usual name tells nothing."""
    data, later = (pictures(seed, image=False, crop=True) for seed in (0, 1))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
    network = from_module(module, preprocess=ImagePreprocess((16, 16), None))
    done = adapt(data, network, method="probe", input="crop", options=Options(cache=tmp_path))
    done.save(tmp_path / "run")
    loaded = load_artifact(tmp_path / "run", model=network)
    assert loaded.columns == ("crop",)
    assert loaded.predict(later) == later["label"].to_pylist()
    assert score_on(loaded, later).score.value == 1.0
    assert scan(later).roles["input"] == ("image",)
    assert len(set(loaded.predict(later.drop_columns(["crop"])))) == 1  # it has none of that name: what is found


def test_parts_go_by_name(tmp_path: Path):
    from pyarrow import csv

    (tmp_path / "parts").mkdir()
    csv.write_csv(table(), tmp_path / "parts" / "train.csv")
    csv.write_csv(table(NAMES[::-1], seed=1), tmp_path / "parts" / "test.csv")
    found = scan(tmp_path / "parts")
    assert found.inputs.columns == NAMES
    test = found.part("test")
    np.testing.assert_allclose(test.inputs.read(3)[0], table(seed=1)["a"][3].as_py(), rtol=1e-5)
    csv.write_csv(table(("w", "b", "c", "d"), seed=1), tmp_path / "parts" / "test.csv")
    with pytest.raises(DataError, match="has no column 'a'"):
        scan(tmp_path / "parts")


class Mixed(nn.Module):
    """An embedding of the first column's codes beside the numbers of the others."""

    def __init__(self, codes: int = 7) -> None:
        super().__init__()
        self.codes = nn.Embedding(codes, 8)
        self.body = nn.Sequential(nn.Linear(8 + 2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(torch.cat([self.codes(rows[:, 0].round().long()), rows[:, 1:]], 1)))


@pytest.mark.parametrize("method", ["all-layers", "gradient", "finetune", "tangent-gp"])
def test_a_column_of_codes_goes_through_every_method(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = from_module(Mixed(), ArrayPreprocess((3,), categories=(7, 0, 0)), name="mixed")
    drawn = np.random.default_rng(0)
    code = drawn.integers(0, 7, 120)
    numbers = drawn.normal(size=(120, 2))
    label = np.where(code % 2 == 0, "even", "odd")
    data = pa.table({"code": code, "a": numbers[:, 0], "b": numbers[:, 1], "label": label})
    done = adapt(
        data, network, method=method, options=Options(cache=tmp_path), **({"steps": 20} if method == "finetune" else {})
    )
    assert done.score.value > 0.6
    with pytest.raises(DataError, match="column 0 of a row holds no code"):
        done.predict(np.array([[7.0, 0, 0]]))


def test_codes_that_nothing_told_of_are_suspected() -> None:
    with pytest.raises(ModelError, match="say so: ArrayPreprocess"):
        _ = from_module(Mixed(codes=1), ArrayPreprocess((3,))).sites
    with pytest.raises(ModelError, match=r"the preprocessing of module is none.*got tuple \(3,\)"):
        from_module(Mixed(), (3,))  # type: ignore[arg-type]
