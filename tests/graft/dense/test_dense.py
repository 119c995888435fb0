"""Dense labels: positions and pixels against plain counting, and a head at every position end to end."""

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import jaccard_score
from tests.graft.dense.scenes import CLASSES, COLOURS, IGNORE, network, scene, write

from regraft.data import scan
from regraft.errors import DataError, ModelError, RecipeError
from regraft.features import map_plan, maps, plan, positions, sweep, whole_images
from regraft.graft import Options, adapt, diagnose, load_artifact, rank
from regraft.graft.adapted.aspp import Aspp
from regraft.graft.adapted.model import Adapted
from regraft.graft.cost import training as training_cost
from regraft.graft.cost.estimate import estimate
from regraft.graft.dense.problem import DenseProblem
from regraft.graft.evidence.exchange import head_exchange
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.pixels import confusions, position_labels
from regraft.graft.preparation import prepare
from regraft.graft.problem import Task
from regraft.graft.recipe import METHODS
from regraft.graft.stages.augment import Augment
from regraft.graft.stages.features import Solve
from regraft.graft.stages.training import Probe
from regraft.graft.training import probing
from regraft.network import ArrayPreprocess, load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("scenes"), {"train": 10, "test": 5})


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return adapt(str(folder), network(), method="probe", ignore=IGNORE, cache=tmp_path_factory.mktemp("cache"))


def test_heads_on_masks_are_not_swapped(folder, run):
    with pytest.raises(DataError, match="masks are not swapped"):
        head_exchange([run.adapted, run.adapted], scan(folder, ignore=IGNORE))


def test_maps_and_positions_are_inverse():
    value = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    rows = positions(value.flatten(1), (4, 5))
    assert torch.equal(rows[1 * 20 + 2 * 5 + 3], value[1, :, 2, 3])
    assert torch.equal(maps(rows, (4, 5)), value)


def test_whole_images_are_read_and_every_position_kept():
    found = whole_images(network(), 52, 68)
    assert (found.preprocess.resize, found.preprocess.crop) == ((52, 68), None)
    (block,) = map_plan(found).blocks
    assert (block.pooling.windows, block.pooling.size, block.width) == ((13, 17), (1, 1), 24 * 13 * 17)
    value = torch.rand(2, 24, 13, 17)
    assert torch.equal(block.pooling(value), value.flatten(1))
    with pytest.raises(ModelError, match="expected"):
        whole_images(load("regraft/fashion-resnet").reading(_Words((4,))), 10, 10)


class _Words(ArrayPreprocess):
    modality = "text"


def test_a_position_has_the_commonest_class_under_it(folder):
    target = scan(folder, ignore=IGNORE).target.take([0, 1, 2])
    grid = (5, 7)  # divides neither side
    found = position_labels(target, grid).numpy()
    for row in range(3):
        mask = target.mask(row)
        height, width = mask.shape
        for place in range(35):
            inside = [
                mask[y, x]
                for y in range(height)
                for x in range(width)
                if int((y + 0.5) * 5 / height) * 7 + int((x + 0.5) * 7 / width) == place and mask[y, x] >= 0
            ]
            expected = np.bincount(inside).argmax() if inside else -1
            assert found[row, place] == expected


def test_confusions_count_pixels_and_miou_is_the_jaccard_index(folder):
    target = scan(folder, ignore=IGNORE).target.take([0, 3, 5])
    logits = torch.randn(3, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    counts = confusions(logits, target).numpy()
    task = Task(target, None, "miou")
    assert torch.equal(torch.from_numpy(counts.sum(2)), task.response.values)
    truth, said = [], []
    for row in range(3):
        mask = target.mask(row)
        up = torch.nn.functional.interpolate(logits[row : row + 1], mask.shape, mode="bilinear", align_corners=False)
        there = mask >= 0
        truth.append(mask[there])
        said.append(up[0].argmax(0).numpy()[there])
        direct = np.zeros((3, 3))
        np.add.at(direct, (truth[-1], said[-1]), 1)
        assert np.array_equal(counts[row], direct)
    from regraft.heads import score

    value = score("miou", task.response, counts)
    assert value == pytest.approx(
        jaccard_score(np.concatenate(truth), np.concatenate(said), average="macro"), abs=1e-12
    )


def problem(folder, **changes) -> DenseProblem:
    manifest = scan(folder, ignore=IGNORE).part("train")
    if "groups" in changes:
        manifest = dataclasses.replace(manifest, groups=changes.pop("groups"))
    backbone = whole_images(network(), 52, 68)
    wanted = map_plan(backbone)
    (block,) = wanted.blocks
    task = Task(manifest.target, manifest.groups, "miou", folds=3)
    matrix = sweep(backbone, manifest, wanted).matrices()[block.name]
    found = DenseProblem.of(task, matrix, block, ("none",), Solve(("ridge",), (1e-2, 1e-4)))
    return dataclasses.replace(found, **changes)


def test_no_image_lies_in_two_folds_and_no_group(folder):
    head = problem(folder, limit=500).solve()
    assert len(head.rows) == 500
    fold = head.inner.fold_ids
    for image in range(10):
        assert len(set(fold[head.rows[:, 0] == image])) == 1
    assert len(set(fold)) == 3
    films = tuple(f"film {i // 3}" for i in range(10))
    head = problem(folder, groups=films).solve()
    film = np.array(films)[head.rows[:, 0]]
    for name in set(films):
        assert len(set(head.inner.fold_ids[film == name])) == 1


def test_positions_are_drawn_by_the_seed(folder):
    whole = problem(folder)
    few = dataclasses.replace(whole, limit=100)
    assert np.array_equal(few.chosen(), few.chosen())
    other = dataclasses.replace(few, task=dataclasses.replace(few.task, seed=1))
    assert not np.array_equal(few.chosen(), other.chosen())
    assert len(whole.chosen()) == int((whole.labels >= 0).sum())


def test_held_out_counts_are_of_labelled_positions(folder):
    whole = problem(folder)
    held = whole.solve().held_out()
    assert held.probabilities.shape == (10, 3, 3)
    assert torch.equal(held.probabilities.sum(2), held.response.values)
    assert int(held.probabilities.sum()) == int((whole.labels >= 0).sum())


def test_colour_decides(run):
    score = run.record.scores["test"]
    assert (score.metric, score.rows) == ("miou", 5)
    assert score.value > 0.93
    assert score.low <= score.value <= score.high
    assert run.record.task["kind"] == "segmentation"
    figures = run.record.figures
    ious = [row["iou"] for row in figures["classes"]]
    assert np.mean(ious) == pytest.approx(score.value, abs=1e-12)
    assert figures["dense"]["grid"] == [13, 17]
    assert len(figures["overlays"]) == 3
    assert "images-taken-for-independent" in [finding.code for finding in run.record.findings]
    assert {c["name"] for one in figures["overlays"] for c in one["classes"]} <= set(CLASSES)
    header, *lines = run.rows
    cells = {name: {line[header.index(name)] for line in lines} for name in ("part", "truth", "predicted")}
    assert cells["part"] == {"validation", "test"}
    assert cells["truth"] | cells["predicted"] <= set(CLASSES)


def test_predicted_masks_are_of_the_images_own_size_and_loaded_alike(run, tmp_path):
    images = []
    for seed, size in ((100, (40, 60)), (101, (61, 52))):
        pixels, _ = scene(seed, size)
        from PIL import Image

        Image.fromarray(pixels).save(tmp_path / f"{seed}.png")
        images.append(tmp_path / f"{seed}.png")
    said = run.predict_proba(images)
    assert [mask.shape for mask in said.masks] == [(40, 60), (61, 52)]
    for mask, seed, size in zip(said.masks, (100, 101), ((40, 60), (61, 52))):
        truth = scene(seed, size)[1]
        assert (mask == truth)[truth != IGNORE].mean() > 0.9
    assert np.allclose(said.probabilities.sum(1), 1)
    saved = run.save(tmp_path / "run")
    again = load_artifact(tmp_path / "run", model=network())
    assert isinstance(again, Adapted)
    assert all(np.array_equal(a, b) for a, b in zip(again.predict(images), said.masks))
    assert saved.record.artifact_bytes > 0
    said.save(tmp_path / "out.csv")
    written = np.asarray(Image.open(tmp_path / "out" / "100.png"))
    assert np.array_equal(written, said.masks[0])
    assert (tmp_path / "out.csv").read_text().startswith("id,mask,width,height,confidence,share(red)")


def test_pixels_without_a_label_have_no_influence(folder, run, tmp_path):
    other = write(tmp_path / "other", {"train": 10, "test": 5}, ignored=77)
    again = adapt(str(other), network(), method="probe", ignore=77, cache=tmp_path / "cache")
    a, b = run.adapted.readout, again.adapted.readout
    assert all(torch.equal(x, y) for x, y in zip(a.coefficients.values(), b.coefficients.values()))
    assert torch.equal(a.intercept, b.intercept)
    assert again.record.scores == run.record.scores
    assert again.record.figures["classes"] == run.record.figures["classes"]


def test_without_a_test_part_every_image_is_predicted_by_a_fit_that_did_not_see_it(tmp_path):
    write(tmp_path / "data", {"train": 6})
    run = adapt(str(tmp_path / "data"), network(), method="probe", ignore=IGNORE, folds=3, cache=tmp_path)
    score = run.record.scores["validation"]
    assert (score.rows, score.protocol) == (6, "outer cross-validation")
    assert len(score.per_fold) == 3
    assert sum(row["rows"] for row in run.record.figures["classes"]) == 6 * 52 * 65


def test_what_does_not_apply_is_said(folder, tmp_path):
    for method in METHODS:
        if not METHODS[method].dense:
            with pytest.raises(RecipeError, match=f"method '{method}' does not apply to masks"):
                adapt(str(folder), network(), method=method, ignore=IGNORE, options=Options(cache=tmp_path))
    with pytest.raises(RecipeError, match="probed on the frozen map"):
        tuned(folder, tmp_path, head="mlp")
    with pytest.raises(RecipeError, match="metric 'map' does not fit segmentation labels"):
        adapt(str(folder), network(), method="probe", ignore=IGNORE, metric="map")
    with pytest.raises(DataError, match="is none of the 3 classes"):
        adapt(str(folder), network(), method="probe")


SHORT = {"tau": 4, "steps": 12, "lr": 0.05}


def tuned(folder, cache, **more):
    more = {"device": "cpu", **SHORT, **more}  # where the same command gives the same bits
    return adapt(str(folder), network(), method="finetune", ignore=IGNORE, cache=cache, **more)


def test_training_moves_the_backbone_and_is_scored_on_pixels(folder, tmp_path):
    run = tuned(folder, tmp_path / "cache")
    assert run.score.value > 0.8
    assert run.adapted.changed
    assert sum(row["rows"] for row in run.record.figures["classes"]) == 5 * 52 * 65
    figure = run.record.figures["training"]
    assert [one["role"] for one in figure["runs"]] == ["final", "twin"]
    assert [one["tau"] for one in figure["probing"]["taus"]] == [4]
    assert figure["probing"]["stronger"] == "aspp"
    energy = next(f for f in run.record.findings if f.code == "initial-energy")
    assert energy.severity == "not-applicable"
    assert "a label at every pixel" in energy.detail
    run.save(tmp_path / "run")
    inputs = [folder / "images" / "test" / f"{i}.png" for i in range(3)]
    again = load_artifact(tmp_path / "run", model=network(), device="cpu")
    assert all(np.array_equal(a, b) for a, b in zip(again.predict(inputs), run.predict(inputs)))
    named = {"options": Options(cache=tmp_path / "cache"), "ignore": IGNORE}
    for looks in (
        lambda: diagnose(folder, network(), run=tmp_path / "run", **named),
        lambda: diagnose(folder, network(), checks=("affinity",), **named),
        lambda: rank(folder, [network(), network(1)], **named),
    ):
        with pytest.raises(DataError, match=r"masks are neither diagnosed nor ranked by; expected labels of whole im"):
            looks()
    solved = adapt(str(folder), network(), method="lp-ft", ignore=IGNORE, cache=tmp_path / "cache", steps=4, lr=0.01)
    assert solved.score.value > 0.8


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0.1, 16 * 13 * 16)),  # of ten images of 13 x 16 or so labelled positions
        ({"lr": 0.003}, (0.003, 16 * 13 * 16)),
        ({"lr": 0.003, "batch_size": 8}, (0.003, 8)),
        ({"aspp": True}, (0.1, 16)),
        ({"aspp": True, "lr": 0.003, "batch_size": 4}, (0.003, 4)),
    ],
)
def test_heads_on_masks_are_probed_as_is_said(folder, tmp_path, monkeypatch, given, expected):
    seen = []

    def noting(own):
        def train(module, rows, config, **more):
            seen.append(config)
            return own(module, rows, config, **more)

        return train

    for where in (probing, training_cost):
        monkeypatch.setattr(where, "train", noting(where.train))
    recipe = METHODS["finetune"].altered(**SHORT)
    stages = tuple(dataclasses.replace(s, **given) if isinstance(s, Probe) else s for s in recipe.stages)
    recipe, options = dataclasses.replace(recipe, stages=stages), Options(cache=tmp_path, instruments="none")
    run = adapt(str(folder), network(), method=recipe, ignore=IGNORE, options=options)
    taken = len(seen)
    assert taken >= 2  # for the choice and for the end
    said = estimate(prepare(str(folder), network(), method=recipe, ignore=IGNORE, options=options), options)
    run.save(tmp_path / "run")
    kept = load_file(tmp_path / "run" / "model.safetensors").values()
    assert said.artifact_bytes == sum(value.nbytes for value in kept)
    assert len(seen) - taken == 1
    for config in seen:
        assert config.optimiser.lr == expected[0]
        assert config.batch_size == pytest.approx(expected[1], rel=0.1 if expected[1] > 1000 else 0)


def same(a, b) -> bool:
    own = [{} if run.adapted.neck is None else run.adapted.neck.tensors() for run in (a, b)]
    tensors = [{**n, **run.adapted.changed, "b": run.adapted.readout.intercept} for n, run in zip(own, (a, b))]
    return tensors[0].keys() == tensors[1].keys() and all(torch.equal(v, tensors[1][k]) for k, v in tensors[0].items())


def test_masks_are_augmented_with_their_images(folder, tmp_path):
    augment = Augment(shift=6, flip=True, crop=0.7)
    whole = ManifestRows.of(whole_images(network(), 52, 68), scan(folder, ignore=IGNORE).part("train"), augment, 0)
    rows, index = whole.take([7, 2, 5]), torch.tensor([2, 0])
    assert torch.equal(rows.targets(index), whole.labels[[5, 7]])
    image, mask = rows.inputs(index, 3, seed=5), rows.targets(index, 3, seed=5)
    likest = ((image / 4 + 0.5)[:, None] - torch.from_numpy(COLOURS / 255.0).float()[..., None, None]).square().sum(2)
    there = mask >= 0  # a class is its colour in these scenes, but for pixels between two areas
    assert (likest.argmin(1) == mask)[there].float().mean() > 0.95
    assert 0.5 < there.float().mean() < 1
    assert (likest.argmin(1) == rows.targets(index))[there].float().mean() < 0.9
    run = tuned(folder, tmp_path / "cache", augment="flip,shift=4,crop=0.8")
    assert run.score.value > 0.8
    assert not same(run, tuned(folder, tmp_path / "cache"))


def test_pixels_without_a_label_train_nothing(folder, tmp_path):
    other = write(tmp_path / "other", {"train": 10, "test": 5}, ignored=77)
    again = adapt(str(other), network(), method="finetune", ignore=77, device="cpu", cache=tmp_path / "b", **SHORT)
    assert same(tuned(folder, tmp_path / "a"), again)


def test_a_head_that_looks_around(folder, tmp_path):
    run = tuned(folder, tmp_path / "cache", head="aspp", tau=12, steps=20)
    assert run.score.value > 0.8
    assert run.record.figures["training"]["probing"]["stronger"] is None
    run.save(tmp_path / "run")
    again = load_artifact(tmp_path / "run", model=network())
    assert again.neck.to_json() == {"channels": 24, "width": 32, "rates": [3, 6, 9]}
    inputs = [folder / "images" / "test" / f"{i}.png" for i in range(3)]
    assert all(np.array_equal(a, b) for a, b in zip(again.predict(inputs), run.predict(inputs)))
    with pytest.raises(RecipeError, match="method 'probe' takes no head"):
        adapt(str(folder), network(), method="probe", ignore=IGNORE, head="aspp")
    rows = np.arange(8, dtype=np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
    with pytest.raises(RecipeError, match="an aspp head is one on masks"):
        adapt((rows, [0, 1] * 4), "regraft/fashion-resnet", method="finetune", head="aspp")


def test_aspp_is_its_branches_side_by_side():
    torch.manual_seed(0)
    layer = Aspp(4, 3, (2,)).eval()
    value = torch.randn(2, 4, 9, 8)

    def convolved(part, padding, rate):
        norm = part[1]
        out = torch.nn.functional.conv2d(value, part[0].weight, padding=padding, dilation=rate)
        return ((out - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + norm.eps).sqrt()).relu()

    mean = torch.nn.functional.conv2d(value.mean((2, 3), keepdim=True), layer.whole[1].weight, layer.whole[1].bias)
    parts = [convolved(layer.branches[0], 0, 1), convolved(layer.branches[1], 2, 2), mean.relu().expand(-1, -1, 9, 8)]
    expected = layer.mixed(torch.cat(parts, 1))
    torch.testing.assert_close(layer(value), expected)
    assert layer(value).shape == (2, 3, 9, 8)


class Killed(BaseException):
    """Stands for a kill -9 between two checkpoints."""


@pytest.mark.parametrize("head", ["linear", "aspp"])
def test_a_training_that_was_interrupted_goes_on_bit_for_bit(folder, tmp_path, head):
    whole = tuned(folder, tmp_path / "whole", head=head)

    def stop(stage, done, total):
        if stage == "train" and done == 15:  # in the final training, after the choice's 12 steps
            raise Killed

    with pytest.raises(Killed):
        tuned(folder, tmp_path / "cut", head=head, progress=stop)
    assert list((tmp_path / "cut" / "training").glob("*/checkpoint.safetensors"))
    assert same(whole, tuned(folder, tmp_path / "cut", head=head))


def test_the_loss_is_the_mean_over_labelled_pixels(folder):
    target = scan(folder, ignore=IGNORE).target.take([0, 1, 2])
    masks = torch.stack([torch.from_numpy(target.mask(row)) for row in range(3)]).to(torch.int16)
    outputs = torch.randn(3, 3, 13, 17, generator=torch.Generator().manual_seed(1), requires_grad=True)
    up = torch.nn.functional.interpolate(outputs, masks.shape[1:], mode="bilinear", align_corners=False).double()
    there = masks >= 0
    chosen = up.log_softmax(1).gather(1, masks.long().clamp_min(0)[:, None])[:, 0]
    objective = Objective.of(Task(target, None, "miou"))
    loss = objective.loss(outputs, masks)
    assert float(loss.detach()) == pytest.approx(float(-chosen[there].mean().detach()), abs=1e-6)
    score = jaccard_score(masks[there], up.argmax(1)[there], average="macro")
    assert objective.score(outputs.detach(), masks) == pytest.approx(score, abs=1e-12)
    loss.backward()
    before = outputs.grad.clone()
    outputs.grad = None
    changed = torch.where(there, masks, torch.full_like(masks, -1))
    objective.loss(outputs, changed).backward()
    assert torch.equal(before, outputs.grad)


def test_one_label_per_row_is_as_before():
    backbone = network()
    assert plan(backbone, [METHODS["probe"].features.taps]).blocks[0].kind == "embedding"


def test_streets_from_few_frames(data_pack, tmp_path):
    """Twenty real frames and a small network: far above naming the commonest class everywhere."""
    manifest = scan(data_pack / "images" / "camvid_240x180")
    rows = np.concatenate([manifest.rows_of("train")[:20], manifest.rows_of("test")[:10]])
    few = manifest.take(rows)
    model = load(str(data_pack / "weights" / "mobilenet_v1_0.25_128"))
    run = adapt(few, model, method="probe", folds=3, cache=tmp_path)
    counts = few.part("test").target.values.sum(0)
    commonest = counts.max() / counts.sum() / (counts > 0).sum()  # the IoU of one class, the others' being 0
    assert run.score.rows == 10
    assert run.score.low > 2 * commonest
    assert run.record.figures["dense"]["grid"] == [13, 17]
    assert run.adapted.predict(few.part("test").take([0]))[0].shape == (180, 240)
