"""Texts on the command line: adapt by every kind of method, predict, the report, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape
from sklearn.model_selection import cross_val_score
from tests.network.texts import LABELS, LENGTH, SENTENCES, make_bert, make_tokenizer

from regraft import GraftClassifier, load

ROWS = list(zip(SENTENCES, LABELS)) * 2


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return make_bert(tmp_path_factory.mktemp("models") / "bert", make_tokenizer())


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """JSON lines with a part for the final score; two texts are longer than the model reads."""
    path = tmp_path_factory.mktemp("data") / "reviews.jsonl"
    rows = [{"review": f"{text} {row % 7}", "label": label} for row, (text, label) in enumerate(ROWS)]
    rows = [{**line, "split": "test" if row % 4 == 0 else "train"} for row, line in enumerate(rows)]
    for row in (1, 5):
        rows[row]["review"] += " very" * LENGTH
    path.write_text("\n".join(json.dumps(line) for line in rows))
    return path


SHORT = ("--tau", "2", "--steps", "6", "--lr", "0.05")


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("probe", ()), ("all-layers", ()), ("head2toe", ()), ("gradient", ()), ("tangent-gp", ()),
        ("finetune", SHORT), ("finetune-refit", SHORT), ("finetune-refit-head2toe", SHORT),
    ],
)  # fmt: skip
def test_adapt_and_predict(regraft, bert, reviews, tmp_path, method, more):
    code, out, err = regraft(
        "adapt", reviews, "-m", bert, "--method", method, "--folds", "2", *more, "--json", "-o", tmp_path / "run"
    )
    assert (code, err) == (0, "")
    done = json.loads(out)
    assert done["scores"]["test"]["metric"] == "accuracy"
    (cut,) = [item for item in done["findings"] if item["code"] == "inputs-shortened"]
    assert cut["title"].startswith("2 of 80 inputs are longer than the backbone reads")
    assert f"{LENGTH} tokens" in cut["detail"]
    page = (tmp_path / "run" / "report.html").read_text()
    mistakes = json.loads((tmp_path / "run" / "record.json").read_text())["figures"]["mistakes"]
    assert all(str(escape(row["text"])) in page for row in mistakes)
    new = tmp_path / "new.csv"
    lines = [json.loads(line) for line in reviews.read_text().splitlines()]
    with new.open("w", newline="") as stream:
        csv.writer(stream).writerows([["review"], *([line["review"]] for line in lines if line["split"] == "test")])
    code, out, err = regraft("predict", tmp_path / "run", new, "--batch-size", "7")
    assert (code, err) == (0, "")
    said = [row["prediction"] for row in csv.DictReader(io.StringIO(out))]
    with (tmp_path / "run" / "predictions.csv").open() as stream:
        kept = [row["predicted"] for row in csv.DictReader(stream) if row["part"] == "test"]
    assert said == kept
    assert len(said) == 20


def test_numbers_about_texts_have_error_bars(regraft, bert, tmp_path):
    data = tmp_path / "lengths.csv"
    rows = [["text", "score"], *([f"{text} {row % 7}", len(text) + row / 100] for row, (text, _) in enumerate(ROWS))]
    with data.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    options = ("--method", "tangent-gp", "--label", "score", "--folds", "2", "--json", "-o", tmp_path / "run")
    code, out, _ = regraft("adapt", data, "-m", bert, *options)
    assert code == 0
    assert json.loads(out)["scores"]["validation"]["metric"] == "r2"
    code, out, err = regraft("predict", tmp_path / "run", data)
    assert (code, err) == (0, "")
    lines = list(csv.DictReader(io.StringIO(out)))
    inside = [float(new["low90"]) <= row[1] <= float(new["high90"]) for new, row in zip(lines, rows[1:])]
    assert np.mean(inside) > 0.7


def test_predict_reads_text_files_and_an_embedded_backbone(regraft, bert, reviews, tmp_path):
    mine = shutil.copytree(bert, tmp_path / "mine")
    assert regraft("adapt", reviews, "-m", mine, "--method", "probe", "--embed", "-o", tmp_path / "run")[0] == 0
    shutil.rmtree(mine)
    texts = [tmp_path / f"{name}.txt" for name in ("one", "two")]
    for path, text in zip(texts, ("a good film", "a dull film, very very number 3")):
        path.write_text(text)
    code, out, err = regraft("predict", tmp_path / "run", *texts)
    assert (code, err) == (0, "")
    assert [row["id"] for row in csv.DictReader(io.StringIO(out))] == [str(path) for path in texts]


def test_predict_takes_the_texts_themselves(regraft, bert, reviews, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert regraft("adapt", reviews, "-m", bert, "--method", "probe", "-o", "run")[0] == 0
    code, out, err = regraft("predict", "run", "a good film", "a dull film, very very number 3.5")
    assert (code, err) == (0, "")
    alone = load("run").predict_proba(["a good film", "a dull film, very very number 3.5"])
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [float(row["confidence"]) for row in rows] == pytest.approx(alone.confidence.tolist(), abs=1e-6)
    for mistyped in (("reviews",), ("new reviews.csv",), ("a good film", "one.txt"), ("a good film", "dull")):
        code, _, err = regraft("predict", "run", *mistyped)
        assert code == 2
        assert f"{mistyped[-1]} is not there" in err
    Path("one.txt").write_text("a good film")
    code, _, err = regraft("predict", "run", "a good film", "one.txt")
    assert (code, "one.txt is a file among texts" in err) == (2, True)
    code, _, err = regraft("predict", "run", "ome.txt")
    assert (code, "ome.txt is not there. To mend it: did you mean one.txt?" in err) == (2, True)
    Path("two.csv").write_text("review\na film\n")
    code, _, err = regraft("predict", "run", "one.txt", "two.csv")
    assert (code, "two.csv: a file of this form is no input" in err) == (2, True)


def table(path: Path, lines: str) -> Path:
    path.write_text(lines)
    return path


LABELLED = "text,label\n" + "".join(f"some words {row},{'ab'[row % 2]}\n" for row in range(12))


@pytest.mark.parametrize(
    ("lines", "more", "said"),
    [
        (LABELLED.replace("some words 3", ""), (), "d.csv row 3: the text is empty"),
        (LABELLED.replace("text", "a,b").replace("words", "x,words"), (), "no input column"),
        (
            "id,text,label\n" + "".join(f"{r},w {r},{'ab'[r % 2]}\n" for r in range(8)),
            ("--input", "id"),
            "array inputs",
        ),
        (LABELLED.replace("text,", "text,body,").replace("words", "x,words"), (), "'text' and 'body' may all hold"),
    ],
)
def test_tables_that_cannot_be_read_as_texts(regraft, bert, tmp_path, lines, more, said):
    data = table(tmp_path / "d.csv", lines)
    code, out, err = regraft("adapt", data, "-m", bert, "--method", "probe", "-o", tmp_path / "run", *more)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_empty_texts_can_be_left_out(regraft, bert, tmp_path):
    data = table(tmp_path / "d.csv", LABELLED.replace("some words 3,", ","))
    options = ("--method", "probe", "--folds", "2", "--skip-bad", "--json", "-o", tmp_path / "run")
    code, out, _ = regraft("adapt", data, "-m", bert, *options)
    assert code == 0
    (left,) = [item for item in json.loads(out)["findings"] if item["code"] == "skipped-rows"]
    assert "row 3: the text is empty" in left["detail"]


def test_the_wrong_kind_of_network_is_named(regraft, bert, tmp_path):
    data = table(tmp_path / "d.csv", LABELLED)
    code, _, err = regraft("adapt", data, "-m", "regraft/fashion-resnet", "--method", "probe", "-o", tmp_path / "run")
    assert code == 2
    assert "regraft/fashion-resnet reads image inputs; got text inputs in d" in err
    pixels = np.zeros((12, 8, 8), np.uint8)
    np.savez(tmp_path / "p.npz", X=pixels + np.arange(12, dtype=np.uint8)[:, None, None], y=np.arange(12) % 2)
    code, _, err = regraft("adapt", tmp_path / "p.npz", "-m", bert, "--method", "probe", "-o", tmp_path / "run")
    assert code == 2
    assert "reads text inputs; got image inputs in p" in err


def test_estimator_takes_a_list_of_strings(bert, tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path))
    model = GraftClassifier(str(bert), method="probe", folds=2, random_state=0)
    scores = cross_val_score(model, SENTENCES, LABELS, cv=2)
    assert scores.shape == (2,)
    model.fit(SENTENCES, LABELS)
    assert list(model.classes_) == ["down", "up"]
    alone = np.concatenate([model.predict_proba([text]) for text in SENTENCES[:9]])
    np.testing.assert_allclose(model.predict_proba(SENTENCES)[:9], alone, atol=1e-5)
