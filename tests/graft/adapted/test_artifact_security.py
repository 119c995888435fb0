"""What a forged artifact or backbone folder must not be able to do: run code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.features.toy import toy_manifest, toy_network

import regraft
from regraft.errors import ArtifactError, ModelError
from regraft.files import canonical_json, digest, file_digest
from regraft.network import Network, load

EVIL = "from pathlib import Path\nPath('ran').touch()\ndef build():\n    Path('ran').touch()\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with its backbone."""
    folder, cache = tmp_path_factory.mktemp("saved"), tmp_path_factory.mktemp("cache")
    regraft.adapt(toy_manifest(60), toy_network(), cache=cache).save(folder, embed=True)
    return folder


@pytest.fixture
def artifact(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the artifact as the working folder, beside a module of the forger's."""
    folder = shutil.copytree(saved, tmp_path / "run")
    (folder / "evil_backbone.py").write_text(EVIL)
    monkeypatch.chdir(folder)
    return folder


def forge(folder: Path, **backbone: object) -> None:
    """Change what ``config.json`` says of the backbone and recompute every digest, as anyone can."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("digest")
    config["backbone"].update(backbone)
    config["files"] = {name: file_digest(folder / name) for name in config["files"]}
    config["digest"] = digest(canonical_json(config))
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("source", ["timm", "transformers", "regraft", "module", ""])
@pytest.mark.parametrize("name", ["evil_backbone:build", "evil_backbone:Path.cwd"])
def test_a_recorded_name_runs_no_code_whatever_its_source(artifact: Path, source: str, name: str) -> None:
    forge(artifact, name=name, source=source, embedded=False)
    with pytest.raises(ArtifactError, match="--model"):
        regraft.load(".")
    assert not (artifact / "ran").exists()


@pytest.mark.parametrize("name", ["evil_backbone:build", "backbone", ".", "regraft/../evil_backbone:build"])
def test_an_embedded_backbone_runs_no_code_whatever_it_says(artifact: Path, name: str) -> None:
    config = {"format": "regraft-weights", "name": name, "source": "timm"}
    (artifact / "backbone" / "config.json").write_text(json.dumps(config))
    forge(artifact)
    with pytest.raises(ModelError, match="runs no code"):
        regraft.load(".")
    with pytest.raises(ModelError, match="runs no code"):
        load("backbone")
    assert not (artifact / "ran").exists()


def test_a_name_that_the_user_typed_is_run(artifact: Path) -> None:
    forge(artifact, embedded=False)
    with pytest.raises(ModelError, match="gives no module"):
        regraft.load(".", model="evil_backbone:build")
    assert (artifact / "ran").exists()


def test_the_recorded_commit_is_asked_of_the_recorded_repository_alone(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def loaded(name: str, *, revision: str | None, **_: object) -> Network:
        asked.append((name, revision))
        return toy_network()

    monkeypatch.setattr("regraft.graft.adapted.backbone.load", loaded)
    forge(artifact, name="org/net", source="transformers", revision="c0ffee", embedded=False)
    for model in (None, "org/net", "other/copy"):
        regraft.load(".", model=model)
    assert asked == [("org/net", "c0ffee"), ("org/net", "c0ffee"), ("other/copy", None)]


@pytest.mark.parametrize("name", ["../outside", "backbone/../../outside", "absolute"])
def test_no_file_outside_the_folder_is_asked_for(artifact: Path, tmp_path: Path, name: str) -> None:
    """Not even one that is there and has the checksum: what loading says of it would tell whether it is."""
    outside = tmp_path / "outside"
    outside.write_text("secret")
    named = str(outside) if name == "absolute" else name
    config = json.loads((artifact / "config.json").read_text())
    config.pop("digest")
    config["files"][named] = file_digest(outside)
    config["digest"] = digest(canonical_json(config))
    (artifact / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match="names a file outside its folder"):
        regraft.load(".")


def test_a_backbone_that_is_not_the_one_it_was_trained_to_is_refused(artifact: Path) -> None:
    assert regraft.load(".", model=toy_network()).classes
    forge(artifact, trained="0" * 64)
    with pytest.raises(ArtifactError, match="cannot be put together again"):
        regraft.load(".", model=toy_network())


@pytest.mark.parametrize(
    "lacking",
    [
        *("task", "taps", "view", "readout", "backbone", "files", "preprocess"),
        *("task.classes", "view.selected", "readout.link", "backbone.fingerprint", "files.model.safetensors"),
    ],
)
def test_an_artifact_that_lacks_something_is_refused_by_what_it_lacks(artifact: Path, lacking: str) -> None:
    config = json.loads((artifact / "config.json").read_text())
    config.pop("digest")
    config["task"]["kind"] = "segmentation" if lacking == "preprocess" else config["task"]["kind"]
    part, _, name = lacking.partition(".")
    (config[part] if name else config).pop(name or part)
    config["digest"] = digest(canonical_json(config))
    (artifact / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match=f"config.json is not complete; got KeyError: '{name or part}'"):
        regraft.load(".")


def test_an_artifact_without_one_of_its_tensors_is_refused(artifact: Path) -> None:
    tensors = load_file(artifact / "model.safetensors")
    tensors.pop("intercept")
    save_file(tensors, artifact / "model.safetensors")
    forge(artifact)
    with pytest.raises(ArtifactError, match="not complete; got KeyError: 'intercept'"):
        regraft.load(".", model=toy_network())


@pytest.mark.parametrize("other", [{"depth": 1.0}, {"width": 3}])  # behind the logits; the mean over another axis
def test_an_artifact_whose_embedding_was_another_value_of_the_network_is_refused(
    other: dict[str, float], artifact: Path
) -> None:
    """As one by a version that took something else of the same network for its embedding."""
    config = json.loads((artifact / "config.json").read_text())
    (block,) = (block for block in config["taps"] if block["kind"] == "embedding")
    block |= other
    (artifact / "config.json").write_text(json.dumps(config))
    forge(artifact)
    with pytest.raises(ArtifactError, match=r"reads another value of .* as its embedding.*run `regraft adapt` again"):
        regraft.load(".", model=toy_network())


def test_an_artifact_whose_unscaled_features_were_scaled_again_is_read_as_it_was_made_or_refused(
    artifact: Path,
) -> None:
    """Version 8 brought all blocks to unit norm over what is kept, also those that it said are not scaled."""
    config = json.loads((artifact / "config.json").read_text())
    kept = ("logits",)
    for version, scaling, wanted in ((9, "unit", kept), (8, "unit", ()), (8, "root", kept), (8, "root-unit", None)):
        config["version"] = version
        config["view"] |= {"scaling": scaling, "renormalised": True, "unscaled": ["logits"]}
        (artifact / "config.json").write_text(json.dumps(config))
        forge(artifact)
        if wanted is None:
            with pytest.raises(ArtifactError, match=r"scaled as no later version does.*run `regraft adapt` again"):
                regraft.load(".", model=toy_network())
        else:
            assert regraft.load(".", model=toy_network()).view.unscaled == wanted


@pytest.mark.parametrize("version", [0, 10])
def test_an_artifact_of_a_version_that_is_not_known_is_refused(artifact: Path, version: int) -> None:
    config = json.loads((artifact / "config.json").read_text())
    (artifact / "config.json").write_text(json.dumps(config | {"version": version}))
    forge(artifact)
    with pytest.raises(ArtifactError, match=f"has another format; expected version 1 to 9; got {version}"):
        regraft.load(".", model=toy_network())
