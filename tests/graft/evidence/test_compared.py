"""Saved runs side by side: what each chose, and how far the choices overlap."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tests.features.toy import toy_manifest, toy_network
from tests.graft.frozen.test_head2toe import SMALL

import regraft
from regraft.app.cli import run as command
from regraft.errors import ArtifactError
from regraft.features import Taps
from regraft.graft import Features, Select, Solve
from regraft.graft.evidence.compared import Chosen, chosen, layer_overlap, overlaps


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    where, cache = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("cache")
    for name, seed, method, network in (
        ("one", 0, SMALL, toy_network()),
        ("two", 1, SMALL, toy_network()),
        ("other", 0, SMALL, toy_network(5)),
        ("probe", 0, "probe", toy_network()),
    ):
        manifest = toy_manifest(60)
        regraft.adapt(manifest, network, method=method, seed=seed, cache=cache).save(where / name)
    return where


def test_a_saved_run_gives_its_choice(folders):
    found = chosen(folders / "one")
    figure = json.loads((folders / "one" / "record.json").read_text())["figures"]["selection"]
    assert (found.name, found.kept, found.width, found.size) == ("one", figure["kept"], figure["width"], figure["size"])
    assert sum(found.layers.values()) == pytest.approx(1)
    assert not any("[" in tap for tap in found.layers)
    assert chosen(folders / "probe") is None


def test_a_record_that_does_not_say_is_refused(folders, tmp_path):
    for path in (folders / "one").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    record = json.loads((tmp_path / "record.json").read_text())
    del record["figures"]["selection"]["layers"], record["digest"]
    (tmp_path / "record.json").write_text(json.dumps(record))
    with pytest.raises(ArtifactError, match="does not say what was chosen"):
        chosen(tmp_path)


def made(name, size="64", fingerprint="a", **columns):
    features = {f"{tap}[{size.partition(',')[0]}]": 10 for tap in ("early", "late")}
    columns = {tap: torch.tensor(index) for tap, index in columns.items()}
    total = sum(map(len, columns.values()))
    layers = {tap: len(index) / total for tap, index in columns.items()}
    return Chosen(name, columns, features, size, fingerprint, layers, 0.5)


def test_overlaps_by_hand():
    one, two = made("1", early=[0, 1, 2], late=[4]), made("2", early=[2, 3], late=[4, 5])
    coarse, foreign = made("3", size="16", late=[4]), made("4", fingerprint="b", early=[0])
    found = overlaps([one, two, coarse, foreign])
    assert found["features"] == [
        [1.0, 0.5, None, None], [0.5, 1.0, None, None], [None, None, 1.0, None], [None, None, None, 1.0],
    ]  # fmt: skip
    assert found["chance"][0][1] == pytest.approx(4 / 20)
    assert found["layers"][0] == pytest.approx([1.0, 0.75, 0.25, None])
    assert layer_overlap(one, two) == layer_overlap(two, one)
    assert layer_overlap(one, replace(two, layers={"elsewhere": 1.0})) == 0


def test_the_scaling_makes_no_other_features():
    plain, scaled = made("1", "64", early=[0, 1]), made("2", "64, root-unit", early=[1, 2])
    assert overlaps([plain, scaled])["features"] == [[1.0, 0.5], [0.5, 1.0]]
    fewer = replace(scaled, features={"early[64]": 10})  # the same size of other taps
    assert overlaps([plain, fewer])["features"][0][1] is None
    tuned = replace(scaled, tuned=True)  # its own training's features, of the same layers
    assert overlaps([plain, tuned])["features"] == [[1.0, None], [None, 1.0]]
    assert None not in overlaps([plain, tuned])["layers"][0]


def test_scalings_of_real_runs_compare(tmp_path):
    one, both = (
        replace(SMALL, stages=(Features(Taps(sizes=(16,)), scalings), Select((0.2,), (1e-2,)), Solve(("ridge",))))
        for scalings in (("unit",), ("unit", "root-unit"))
    )
    for name, method in (("one", one), ("both", both)):
        regraft.adapt(toy_manifest(60), toy_network(), method=method, cache=tmp_path / "cache").save(tmp_path / name)
    runs = [chosen(tmp_path / name) for name in ("one", "both")]
    assert runs[0].size != runs[1].size
    assert 0 < overlaps(runs)["features"][0][1] <= 1


def test_report_says_which_runs_chose_nothing(folders, capfd):
    named = [str(folders / name) for name in ("one", "probe")]
    assert command(["report", *named]) == 0
    assert "probe: no chosen features in the record" in capfd.readouterr().out
    assert command(["report", *named, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["chosen"]["without"] == ["probe"]
    assert command(["report", *(str(folders / name) for name in ("one", "two"))]) == 0
    assert "no chosen features" not in capfd.readouterr().out


def test_report_of_several_runs_prints_the_matrices(folders, capfd):
    named = [str(folders / name) for name in ("one", "two", "other", "probe")]
    assert command(["report", *named]) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[:4] == [f"{name}/report.html" for name in named]
    assert sum("features at target size" in line for line in out) == 3
    at = next(i for i, line in enumerate(out) if line.startswith("layers in common"))
    assert [line.split()[0] for line in out[at + 2 : at + 5]] == ["1", "2", "3"]  # the probe chose nothing
    assert out[at + 2].split()[1] == out[at + 2].split()[3] == "–"  # itself, and another backbone
    assert command(["report", *named, "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert [entry["run"] for entry in value["paths"]] == named
    assert [entry["run"] for entry in value["chosen"]["runs"]] == ["one", "two", "other"]
    assert value["chosen"]["layers"][0][2] is None
    assert 0 < value["chosen"]["layers"][0][1] <= 1


def test_output_is_of_one_run(folders, tmp_path, capfd):
    named = [str(folders / name) for name in ("one", "two")]
    assert command(["report", *named, "-o", str(tmp_path / "r.html")]) == 2
    assert "--output names one file" in capfd.readouterr().err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("name", ["photo.png", "one/record.json", "one"])
def test_a_report_replaces_nothing_but_a_page(folders, tmp_path, capfd, name):
    output = folders / name
    if not output.exists():
        output.write_bytes(b"a picture")
    before = output.read_bytes() if output.is_file() else b""
    assert command(["report", str(folders / "one"), "-o", str(output)]) == 2
    assert f"cannot write a report as {output.name}; expected a .html file" in capfd.readouterr().err
    assert not before or output.read_bytes() == before
