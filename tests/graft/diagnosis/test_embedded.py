"""A diagnosis of runs whose trained backbone is embedded: where the training began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.features.toy import toy_manifest, toy_network

import regraft
from regraft.errors import ArtifactError
from regraft.files import sealed, write_json
from regraft.graft import Options, Scope, diagnose
from regraft.graft.adapted.artifact import load_artifact
from regraft.network import ArrayPreprocess
from regraft.network.loaders.bundled import save_folder
from regraft.network.resnet import small_resnet
from regraft.record import Record


@pytest.fixture
def options(tmp_path) -> Options:
    return Options(folds=3, cache=tmp_path / "cache", batch_size=8)


def moved(folder: Path, options: Options, model=None, against: str | None = None) -> Record:
    how = {"scope": Scope(rows=24, top=5, points=5), "options": options, "checks": "deviation"}
    return diagnose(toy_manifest(60), model, run=folder, against=against, **how)


def network(folder: Path) -> str:
    torch.manual_seed(0)
    shape = {"channels": [4, 6], "blocks": 1, "classes": 5}
    made = {"arch": "small_resnet", "options": shape, "preprocess": ArrayPreprocess((3, 6, 6)), "classes": ()}
    save_folder(folder, small_resnet(**shape), **made)
    return str(folder)


def adapted(folder: Path, model, cache: Path, **more) -> Record:
    """A run beside one that embeds its backbone, in a folder of the name and ``-whole``."""
    settings = {"method": "finetune", "tau": 0, "steps": 3, "lr": 0.05, "cache": cache, **more}
    run = regraft.adapt(toy_manifest(60), model, **settings)
    run.save(folder)
    return run.save(folder.with_name(f"{folder.name}-whole"), embed=True).record


def as_before(folder: Path) -> None:
    """The artifact as earlier versions wrote it, which did not say what an embedded backbone was trained from."""
    config = json.loads((folder / "config.json").read_text())
    del config["digest"], config["backbone"]["origin"]
    write_json(folder / "config.json", sealed(config))


@pytest.mark.parametrize("more", [{}, {"method": "scratch", "tau": None}, {"partial": 1}])
def test_it_began_where_it_did_without_embedding(tmp_path, options, more):
    model = network(tmp_path / "net")
    adapted(tmp_path / "run", model, options.cache, **more)
    plain, whole = (moved(tmp_path / name, options).figures["deviation"] for name in ("run", "run-whole"))
    assert whole["subjects"] == plain["subjects"]
    before, after = (json.loads((tmp_path / f"{n}/config.json").read_text()) for n in ("run", "run-whole"))
    assert after["backbone"]["origin"]["fingerprint"] == before["backbone"]["fingerprint"]
    assert after["backbone"]["fingerprint"] == before["backbone"]["trained"] != before["backbone"]["fingerprint"]


def test_a_backbone_that_moved_is_named_and_one_that_is_lost_is_told(tmp_path, options):
    model, there = network(tmp_path / "net"), str(tmp_path / "elsewhere")
    record = adapted(tmp_path / "run", model, options.cache)
    (tmp_path / "net").rename(there)
    whole = tmp_path / "run-whole"
    assert moved(whole, options, there).figures["deviation"]["subjects"][0]["total"] > 0
    with pytest.raises(ArtifactError, match="is not the backbone that this head was solved on"):
        moved(whole, options, str(whole / "backbone"))
    (finding,) = moved(whole, options).findings
    assert finding.severity == "not-applicable"
    assert "saved with --embed, which keeps the trained backbone alone. To mend it: say with --model" in finding.detail

    with pytest.raises(ArtifactError, match=rf"leave --model out: the backbone lies in {whole / 'backbone'}"):
        load_artifact(whole, model=there)
    trained = load_artifact(whole).network.fingerprint
    card = (whole / "README.md").read_text()
    assert f"- Backbone: in `backbone/`, fingerprint `{trained[:16]}`, trained from {model}, fingerprint `" in card
    assert f", fingerprint `{record.model['fingerprint'][:16]}`, licence" in card
    assert "in `backbone/`" not in (tmp_path / "run/README.md").read_text()


def test_a_run_that_does_not_say_where_it_began_is_named_beside_one_that_does(tmp_path, options):
    model = network(tmp_path / "net")
    adapted(tmp_path / "run", model, options.cache)
    as_before(tmp_path / "run-whole")
    record = moved(tmp_path / "run", options, against=str(tmp_path / "run-whole"))
    assert [subject["name"] for subject in record.figures["deviation"]["subjects"]] == ["trained"]
    told = [(finding.title, finding.detail) for finding in record.findings if finding.severity == "not-applicable"]
    assert [title for title, _ in told] == ["Deviation of run-whole not measured"]
    assert "saved with --embed" in told[0][1]


def test_an_own_module_goes_on_from_its_source(tmp_path, options):
    model = toy_network().without_head()
    adapted(tmp_path / "run", model, options.cache)
    plain, whole = (moved(tmp_path / name, options, model).figures["deviation"] for name in ("run", "run-whole"))
    assert whole["subjects"] == plain["subjects"]
