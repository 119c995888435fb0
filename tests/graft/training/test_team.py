"""Two processes that train one network, beside one process that takes the same parts of a batch one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.graft.loop.test_train import toy_module, toy_rows
from torch import Tensor, distributed, nn

from regraft.app.cli import _first
from regraft.errors import RecipeError
from regraft.graft.loop.train import DivergedError, ImageRows, Training, tensor_digest, train
from regraft.graft.stages.config import Loop, Optimiser, Schedule, TrainConfig
from regraft.graft.team import Team, joined

PLAIN = TrainConfig(
    epochs=3, batch_size=8, optimiser=Optimiser(lr=0.02, kind="adamw", clip=0.5), schedule=Schedule(warmup=2), seed=5
)
WEIGHED = replace(PLAIN, optimiser=Optimiser(lr=0.05), loop=Loop(average=0.9))
ONES = replace(PLAIN, batch_size=1, epochs=1)
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def plain_module() -> nn.Module:
    """No randomness and no statistics of a batch, and a frozen layer."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 3)
        )
    module[0].bias.requires_grad_(False)
    return module


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def split(config: TrainConfig, parts: int) -> TrainConfig:
    return replace(config, loop=replace(config.loop, accumulate=parts))


class Poisoned(ImageRows):
    """One row is not a number: one process alone sees it."""

    def inputs(self, index, epoch=None, seed=0):
        found = super().inputs(index, epoch, seed)
        found[index == 3] = torch.nan
        return found


def _work(folder: Path) -> None:
    """What each of the two processes does."""
    with joined("cpu") as team:
        found, rows = {}, toy_rows()
        for name, config in (("plain", PLAIN), ("weighed", WEIGHED), ("ones", ONES), ("four", split(PLAIN, 2))):
            module = plain_module()
            if team.rank:  # the first one's weights are where all begin
                module.load_state_dict({key: value + 1 for key, value in module.state_dict().items()})
            outcome = train(module, rows, config)
            found[name] = {"loss": outcome.history[-1].loss, "score": outcome.history[-1].train_score}
            if team.first:
                save_file(state(module), folder / f"{name}.safetensors")
        whole, stopped = toy_module(), toy_module()
        train(whole, rows, PLAIN, validation=rows)
        run = Training(stopped, rows, PLAIN, validation=rows, folder=folder / "kept")
        run.open()
        run.advance(5)
        run = Training(toy_module(), rows, PLAIN, validation=rows, folder=folder / "kept")
        run.open()
        found["resumed"], found["key"] = run.resumed, Training(plain_module(), rows, PLAIN).key
        run.advance()
        found["ends"] = [tensor_digest(state(module)) for module in (whole, run.module)]
        bad = Poisoned(rows.pixels, rows.labels)
        try:
            train(plain_module(), bad, PLAIN)
        except DivergedError as error:
            found["diverged"] = str(error)
        every: list = [None] * team.size
        distributed.all_gather_object(every, found)
        if team.first:
            (folder / "found.json").write_text(json.dumps(every))


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("team")
    command = [*LAUNCH, "-m", "tests.graft.training.test_team", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize(("name", "config"), [("plain", PLAIN), ("weighed", WEIGHED)])
def test_two_processes_are_two_parts_of_a_batch_bit_for_bit(worked, name, config):
    folder, found = worked
    module = plain_module()
    outcome = train(module, toy_rows(), split(config, 2))
    kept = load_file(folder / f"{name}.safetensors")
    assert all(torch.equal(value, kept[key]) for key, value in module.state_dict().items())
    for said in found:
        assert said[name]["loss"] == pytest.approx(outcome.history[-1].loss, rel=1e-12)
        assert said[name]["score"] == outcome.history[-1].train_score


def test_parts_within_a_process_add_up_too(worked):
    module = plain_module()
    train(module, toy_rows(), split(PLAIN, 4))
    kept = load_file(worked[0] / "four.safetensors")
    for key, value in module.state_dict().items():
        torch.testing.assert_close(kept[key], value, rtol=1e-4, atol=1e-6)


def test_a_batch_of_one_row_leaves_a_process_idle(worked):
    module = plain_module()
    train(module, toy_rows(), ONES)
    kept = load_file(worked[0] / "ones.safetensors")
    assert all(torch.equal(value, kept[key]) for key, value in module.state_dict().items())


def test_statistics_and_weights_agree_and_a_resume_is_bit_for_bit(worked):
    ends = [end for said in worked[1] for end in said["ends"]]
    assert len(ends) == 4
    assert len(set(ends)) == 1
    assert [said["resumed"] for said in worked[1]] == [5, 5]


def test_a_training_of_two_is_another_than_that_of_one(worked):
    keys = {said["key"] for said in worked[1]}
    assert len(keys) == 1
    assert Training(plain_module(), toy_rows(), PLAIN).key not in keys


def test_what_diverges_in_one_diverges_in_all(worked):
    assert all("diverged" in said["diverged"] for said in worked[1])


def test_another_use_of_processes_makes_no_team(tmp_path):
    distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path / 'store'}")
    try:
        assert Team.current() == Team()
    finally:
        distributed.destroy_process_group()


def test_one_device_for_all_is_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    for device in ("cuda:0", "mps"):
        with pytest.raises(RecipeError, match="cannot train on one device"), joined(device):
            pass
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined("cuda:0") as team:  # a rank that something else has left: a process alone takes what it is told
        assert team == Team()


@pytest.mark.parametrize(("size", "rank"), [("two", "0"), ("2", ""), ("2", "0")])
def test_a_launcher_s_variables_that_are_not_whole_are_named(monkeypatch, size, rank):
    for name, value in {"WORLD_SIZE": size, "RANK": rank, "MASTER_ADDR": "", "MASTER_PORT": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match=f"WORLD_SIZE='{size}', RANK='{rank}'.*unset WORLD_SIZE"), joined("cpu"):
        pass
    assert isinstance(_first(), bool)


def test_a_process_alone_is_a_team_of_one():
    team = Team.current()
    assert (team.rank, team.size, team.first) == (0, 1, True)
    value = torch.tensor([2.0])
    assert team.sum(value) is value
    assert team.agreed(0.5) == 0.5
    assert team.gathered(value) == [value]
    with joined("cpu") as same:
        assert same == team


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
