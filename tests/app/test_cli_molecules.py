"""Molecules on the command line: SMILES columns, labels with gaps, groups, training, predictions, refusals."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict

import numpy as np
import pytest
import torch

from regraft.network.gcn import MoleculeGCN
from regraft.network.loaders import bundled
from regraft.network.molecule import MoleculePreprocess

pytest.importorskip("rdkit", reason="needs the extra: pip install 'regraft[graph]'")
from rdkit.Chem import CanonSmiles

TARGETS = ("NR-acid", "NR-ring", "SR-long")


@pytest.fixture(scope="module")
def gcn(tmp_path_factory):
    """A small random backbone folder."""
    torch.manual_seed(0)
    where, module = tmp_path_factory.mktemp("models") / "gcn", MoleculeGCN(3, 16)
    bundled.save_folder(
        where,
        module,
        arch="molecule_gcn",
        options={"layers": 3, "width": 16},
        preprocess=MoleculePreprocess(),
        classes=(),
    )
    return where


@pytest.fixture(scope="module")
def assays(tmp_path_factory):
    """120 rows of 60 molecules, each written in two ways; every ninth label is not known."""
    rows = []
    for size in range(1, 16):
        for acid in (0, 1):
            for ring in (0, 1):
                smiles = "C" * size + ("c1ccccc1" if ring else "") + ("C(=O)O" if acid else "N")
                same = ("OC(=O)" if acid else "N") + ("c1ccccc1" if ring else "") + "C" * size
                rows += [[way, acid, ring, int(size > 7)] for way in (smiles, same)]
    order = np.random.default_rng(0).permutation(len(rows))
    path = tmp_path_factory.mktemp("data") / "assays.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["mol_id", "smiles", *TARGETS])
        for number, row in enumerate(order):
            smiles, *labels = rows[row]
            shown = ["" if (number + place) % 9 == 0 else label for place, label in enumerate(labels)]
            writer.writerow([f"M{number}", smiles, *shown])
    return path


TASK = ("--label", "NR-*", "--label", "SR-*", "--metric", "roc-auc", "--folds", "3")
SHORT = ("--tau", "2", "--steps", "30", "--lr", "0.05")


@pytest.mark.parametrize(
    ("method", "more"),
    [("probe", ()), ("all-layers", ()), ("gradient", ()), ("finetune", SHORT), ("finetune-refit", SHORT)],
)
def test_adapt_and_predict(regraft, gcn, assays, tmp_path, method, more):
    code, out, err = regraft(
        "adapt", assays, "-m", gcn, "--method", method, *TASK, *more, "--json", "-o", tmp_path / "run"
    )
    assert (code, err) == (0, "")
    done = json.loads(out)
    assert done["task"]["kind"] == "multilabel"
    assert done["task"]["classes"] == list(TARGETS)
    assert done["scores"]["validation"]["metric"] == "roc-auc"
    assert done["scores"]["validation"]["value"] > 0.6
    (found,) = [item for item in done["findings"] if item["code"] == "rows-kept-together"]
    assert found["value"] == 60
    lines = enumerate(csv.DictReader(assays.open()))
    smiles = {f"row {row}": CanonSmiles(line["smiles"]) for row, line in lines}
    folds = defaultdict(set)
    with (tmp_path / "run" / "predictions.csv").open() as stream:
        for line in csv.DictReader(stream):
            folds[smiles[line["id"]]].add(line["fold"])
    assert all(len(where) == 1 for where in folds.values())  # no fold crosses a molecule
    if method == "finetune":
        scored = {smiles[line["id"]] for line in csv.DictReader((tmp_path / "run" / "predictions.csv").open())}
        assert 0 < len(scored) < 60
    new = tmp_path / "new.csv"
    new.write_text("smiles\nCCCC(=O)O\nOC(=O)CCC\nCCCN\n")
    code, out, err = regraft("predict", tmp_path / "run", new)
    assert (code, err) == (0, "")
    lines = list(csv.DictReader(io.StringIO(out)))
    first, same, other = ([float(line[f"p({name})"]) for name in TARGETS] for line in lines)
    np.testing.assert_allclose(first, same, atol=1e-5)  # one molecule, written in two ways
    assert not np.allclose(first, other, atol=1e-3)
    code, out, err = regraft("predict", tmp_path / "run", "CCCC(=O)O", "CCCN")  # molecules as they are
    assert (code, err) == (0, "")
    again = [[float(line[f"p({name})"]) for name in TARGETS] for line in csv.DictReader(io.StringIO(out))]
    np.testing.assert_allclose(again, [first, other], atol=1e-5)
    code, _, err = regraft("predict", tmp_path / "run", "CCO", "new")
    assert (code, "new is not there" in err, "as an input: " in err) == (2, True, True)


def test_numbers_about_molecules_have_error_bars(regraft, gcn, assays, tmp_path):
    data = tmp_path / "sizes.csv"
    with assays.open() as stream:
        rows = [
            [line["smiles"], len(line["smiles"]) + index / 100] for index, line in enumerate(csv.DictReader(stream))
        ]
    with data.open("w", newline="") as stream:
        csv.writer(stream).writerows([["smiles", "size"], *rows])
    options = ("--method", "tangent-gp", "--label", "size", "--folds", "3", "--json", "-o", tmp_path / "run")
    code, out, _ = regraft("adapt", data, "-m", gcn, *options)
    assert code == 0
    assert json.loads(out)["scores"]["validation"]["metric"] == "r2"
    code, out, err = regraft("predict", tmp_path / "run", data)
    assert (code, err) == (0, "")
    lines = list(csv.DictReader(io.StringIO(out)))
    inside = [float(new["low90"]) <= row[1] <= float(new["high90"]) for new, row in zip(lines, rows)]
    assert np.mean(inside) > 0.7


def test_strings_that_are_no_molecules_are_named_together(regraft, gcn, assays, tmp_path):
    broken = tmp_path / "broken.csv"
    lines = assays.read_text().splitlines()
    for row in (3, 7):
        name, _, rest = lines[row + 1].split(",", 2)
        lines[row + 1] = f"{name},C1CC,{rest}"
    broken.write_text("\n".join(lines))
    arguments = ("adapt", broken, "-m", gcn, "--method", "probe", *TASK, "-o", tmp_path / "run")
    code, _, err = regraft(*arguments)
    assert code == 2
    assert "2 of the inputs in broken cannot be used: broken.csv row 3, broken.csv row 7: 'C1CC' is no molecule" in err
    code, out, _ = regraft(*arguments, "--skip-bad", "--json")
    assert code == 0
    (left,) = [item for item in json.loads(out)["findings"] if item["code"] == "skipped-rows"]
    assert left["value"] == 2
    (tmp_path / "new.csv").write_text("smiles\nCCO\nno molecule\n")
    code, _, err = regraft("predict", tmp_path / "run", tmp_path / "new.csv")
    assert code == 2
    assert "new.csv row 1: 'no molecule' is no molecule that RDKit reads" in err
    code, out, _ = regraft("predict", tmp_path / "run", tmp_path / "new.csv", "--skip-bad")
    assert [line["id"] for line in csv.DictReader(io.StringIO(out))] == ["row 0"]


def test_a_molecule_written_in_another_way_is_the_same_row(regraft, gcn, tmp_path):
    header, split = "smiles,heavy", "smiles,heavy,split"
    chains = ["C" * size + end for size in range(1, 13) for end in ("O", "N")]
    rows = [f"{smiles},{int(len(smiles) > 6)}" for smiles in chains]
    others = [f"{smiles[::-1]},{int(len(smiles) <= 6)}" for smiles in chains[:8]]  # OC for CO, with the other label
    copy = f"{chains[0]},1"
    plain, parted, later = (tmp_path / f"{name}.csv" for name in ("plain", "parted", "later"))
    plain.write_text("\n".join([header, *rows]))
    later.write_text("\n".join([header, *others]))
    lines = [*(f"{row},train" for row in rows), *(f"{row},test" for row in (*others, copy))]
    parted.write_text("\n".join([split, *lines]))
    code, out, _ = regraft("adapt", parted, "-m", gcn, "--method", "probe", "--json", "-o", tmp_path / "parted")
    assert code == 0
    found = {item["code"]: item for item in json.loads(out)["findings"]}
    assert found["duplicate-rows-across-splits"]["value"] == 8
    assert found["label-conflict"]["value"] == 8
    assert found["label-conflict"]["detail"].startswith("Identical inputs, however written, different labels: ")
    code, _, _ = regraft("adapt", plain, "-m", gcn, "--method", "probe", "--folds", "3", "-o", tmp_path / "run")
    assert code == 0
    code, out, _ = regraft("score", tmp_path / "run", later, "--json")
    assert code == 0
    (own,) = [item for item in json.loads(out)["findings"] if item["code"] == "own-rows"]
    assert own["value"] == 8
    record = tmp_path / "run" / "record.json"
    earlier = json.loads(record.read_text())
    del earlier["data"]["written"], earlier["digest"]  # of a run by an earlier version the bytes alone are known
    record.write_text(json.dumps(earlier))
    code, out, _ = regraft("score", tmp_path / "run", later, "--json")
    assert code == 0
    assert "own-rows" not in {item["code"] for item in json.loads(out)["findings"]}


def test_molecules_written_in_other_ways_are_copies_of_one_and_the_same_rows_of_two_runs(regraft, gcn, tmp_path):
    chains = ["C" * size + end for size in range(1, 13) for end in ("O", "N")]
    for name, ways in (("plain", chains), ("other", [smiles[::-1] for smiles in chains]), ("copied", chains)):
        lines = [f"{smiles},{int(len(smiles) > 6)}" for smiles in ways]
        if name == "copied":
            lines += [f"{smiles[::-1]},{int(len(smiles) > 6)}" for smiles in chains[:8]]
        (tmp_path / f"{name}.csv").write_text("\n".join(["smiles,heavy", *lines]))
    runs = [tmp_path / "runs" / name for name in ("plain", "other")]
    for run in runs:
        data = tmp_path / f"{run.name}.csv"
        code, _, _ = regraft("adapt", data, "-m", gcn, "--method", "probe", "--folds", "3", "-o", run)
        assert code == 0
    code, out, _ = regraft("report", *runs, "--json")
    assert code == 0
    (pair,) = json.loads(out)["paired"]
    assert (pair["rows"], pair["altered"]) == (24, 0)
    code, out, _ = regraft(
        "diagnose", tmp_path / "copied.csv", "-m", gcn, "--check", "transfer", "--json", "-o", tmp_path / "d"
    )
    assert code == 0
    (told,) = [item for item in json.loads(out)["findings"] if item["code"] == "repeated-rows"]
    assert told["value"] == 8
    assert told["detail"].startswith("The same inputs, however written, stand in several rows.")
