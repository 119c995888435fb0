"""Realistic Records for the report's tests: what a run would write, made from a seeded generator."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image
from tests.app.report import chosen_samples

from regraft.record import Candidate, Cost, Finding, Record, Score

FLOWERS = ("daisy", "dandelion", "rose", "sunflower", "tulip")
VERSIONS = {"python": "3.11.9", "regraft": "0.1.0", "torch": "2.13.0", "numpy": "2.4.1"}
CITATIONS = (
    "Evci, Dumoulin, Larochelle, Mozer: Head2Toe: Utilizing Intermediate Representations for Better Transfer "
    "Learning. ICML 2022.",
    "Guo, Pleiss, Sun, Weinberger: On Calibration of Modern Neural Networks. ICML 2017.",
)


def thumbnail(seed: int, form: str = "JPEG") -> str:
    """A small picture as a data URI."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:48, 0:48] / 47
    waves = [np.sin(rng.uniform(3, 9) * x + rng.uniform(3, 9) * y + rng.uniform(0, 6)) for _ in range(3)]
    pixels = (127 + 100 * np.stack(waves, axis=-1)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return f"data:image/{form.lower()};base64," + base64.b64encode(buffer.getvalue()).decode()


def matrix(classes: int, rows: int, accuracy: float, seed: int) -> list[list[int]]:
    """A confusion matrix in which neighbouring classes are confused more often."""
    rng = np.random.default_rng(seed)
    counts = []
    for i in range(classes):
        n = rows // classes + (i < rows % classes)
        odds = 1.0 / (1 + np.abs(np.arange(classes) - i)) * rng.uniform(0.3, 1.7, classes)
        odds[i] = 0
        recall = min(0.99, accuracy + rng.uniform(-0.06, 0.06))
        counts.append(
            rng.multinomial(
                n, [*(odds / odds.sum() * (1 - recall))[:i], recall, *(odds / odds.sum() * (1 - recall))[i + 1 :]]
            ).tolist()
        )
    return counts


def per_class(names: tuple[str, ...], counts: list[list[int]]) -> list[dict[str, Any]]:
    c = np.array(counts)
    right, truth, named = np.diag(c), c.sum(1), np.maximum(c.sum(0), 1)
    return [
        {"name": n, "rows": int(t), "recall": float(r / t), "precision": float(r / p)}
        for n, t, r, p in zip(names, truth, right, named, strict=True)
    ]


def reliability(rows: int, seed: int, bins: int = 15) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shares = np.linspace(0.2, 1, bins) ** 6
    counts = rng.multinomial(rows, shares / shares.sum())
    found = []
    for i, n in enumerate(counts):
        low, high = i / bins, (i + 1) / bins
        middle = (low + high) / 2
        right = float(np.clip(middle - 0.03 + rng.normal(0, 0.25 / math.sqrt(max(n, 1))), 0, 1))
        empty = n == 0
        found.append(
            {
                "low": low,
                "high": high,
                "confidence": None if empty else middle,
                "accuracy": None if empty else right,
                "count": int(n),
            }
        )
    ece = sum(b["count"] * abs(b["confidence"] - b["accuracy"]) for b in found if b["count"]) / rows
    return {"bins": found, "ece": ece}


def layers(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    shares = np.exp(np.linspace(-2, 1, count) + rng.normal(0, 0.7, count))
    shares /= shares.sum()
    rows = [
        {
            "name": f"features.{1 + i // 3}.conv.{i % 3}.relu6",
            "kind": "block" if i % 3 == 2 else "activation",
            "depth": i / max(count - 1, 1),
            "share": float(share),
            "width": int(16 * (1 + i // 4)),
        }
        for i, share in enumerate(shares)
    ]
    rows[-1].update(name="logits", kind="logits")
    if count > 1:
        rows[-2].update(name="embedding", kind="embedding")
    return rows


def strengths(forms: tuple[str, ...] = ("ridge", "logistic"), peak: float = 0.905) -> list[dict[str, Any]]:
    rows = []
    for index, form in enumerate(forms):
        for power in range(-6, 5):
            score = peak - 0.006 * index - 0.0035 * abs(power + 2 - index) ** 1.7
            rows.append(
                {
                    "form": form,
                    "strength": 10.0**power,
                    "score": score,
                    "standard_error": 0.006 + 0.0005 * abs(power),
                    "chosen": False,
                }
            )
    max(rows, key=lambda row: row["score"])["chosen"] = True
    return rows


def costs(flops: int = 518_000_000_000) -> tuple[Cost, ...]:
    return (
        Cost("scan", 0.8, 0.7, 0.0, 0, 412_000_000),
        Cost("sweep", 24.6, 47.0, 1.0, flops, 1_190_000_000),
        Cost("solve", 4.1, 7.9, 0.0, 0, 1_310_000_000),
        Cost("diagnose", 1.2, 1.9, 0.0, 0, 1_310_000_000),
        Cost("write", 0.3, 0.2, 0.0, 0, 1_310_000_000),
    )


def findings() -> tuple[Finding, ...]:
    return (
        Finding(
            "duplicate-rows",
            "Four images appear twice under different labels",
            "warning",
            4,
            "pairs",
            detail="rose/0113.jpg and tulip/0042.jpg hold the same bytes, as do three other pairs of training rows.",
            advice="Keep one row of each pair, with the right label.",
        ),
        Finding(
            "small-inputs",
            "The images are smaller than the backbone expects",
            "advice",
            128,
            "px",
            detail="They are 128 px wide and are enlarged to 224 px.",
            advice="Use larger originals if you have them.",
        ),
        Finding(
            "images-taken-for-independent",
            "No group column was named",
            "info",
            detail="Rows were taken for independent.",
        ),
        Finding(
            "class-balance",
            "The classes are balanced",
            "info",
            1.41,
            "",
            1.3,
            1.52,
            detail="The commonest class has 1.41 times the rows of the rarest.",
        ),
        Finding("dense-labels", "Interval by group", "not-applicable", detail="there are no groups"),
        Finding("text-length", "Length of the texts", "not-applicable", detail="the inputs are images"),
    )


def multiclass(images: tuple[str, ...] = ()) -> Record:
    """Five classes, a test split, every figure."""
    counts = [[151, 8, 3, 4, 2], [5, 189, 1, 6, 2], [4, 1, 131, 2, 19], [2, 5, 3, 153, 3], [3, 2, 13, 5, 147]]
    right, rows = sum(counts[i][i] for i in range(5)), sum(map(sum, counts))
    accuracy = right / rows
    pictures = images or tuple(thumbnail(i) for i in range(8))
    wrong = [
        ("rose", "tulip"),
        ("tulip", "rose"),
        ("daisy", "dandelion"),
        ("rose", "tulip"),
        ("dandelion", "sunflower"),
        ("tulip", "rose"),
        ("sunflower", "daisy"),
        ("tulip", "sunflower"),
    ]
    return Record(
        verb="adapt",
        status="done",
        method="all-layers",
        task={"kind": "multiclass", "classes": list(FLOWERS), "rows": 4317},
        model={
            "name": "google/mobilenet_v2_1.0_224",
            "source": "transformers",
            "licence": "Apache-2.0",
            "revision": "d0e1a7f",
            "parameters": 3_504_872,
            "fingerprint": "9f2c4ab17d" * 6 + "00ff",
        },
        data={
            "name": "flowers5",
            "rows": {"train": 2589, "validation": 864, "test": 864},
            "fingerprint": "41d8cd98f0" * 6 + "0b20",
            "modality": "image",
            "skipped": 0,
        },
        scores={
            "validation": Score("accuracy", 0.9028, 0.8812, 0.9208, "wilson", 864, protocol="validation split"),
            "test": Score("accuracy", accuracy, 0.8712, 0.9127, "wilson", rows, protocol="test split"),
        },
        other_scores={
            "test": (
                Score("balanced-accuracy", 0.8903, 0.868, 0.911, "bootstrap over rows", rows, protocol="test split"),
                Score("roc-auc", 0.9861, 0.981, 0.9902, "bootstrap over rows", rows, protocol="test split"),
                Score("nll", 0.3127, 0.264, 0.367, "bootstrap over rows", rows, protocol="test split"),
                Score("ece", 0.0312, 0.0214, 0.0471, "bootstrap over rows", rows, protocol="test split"),
                Score("brier", 0.1544, 0.131, 0.179, "bootstrap over rows", rows, protocol="test split"),
            )
        },
        candidates=tuple(
            Candidate(r["form"], r["strength"], r["score"], r["standard_error"], r["chosen"]) for r in strengths()
        ),
        costs=costs(),
        findings=findings(),
        figures={
            "confusion": {"classes": list(FLOWERS), "counts": counts, "rows": "test"},
            "classes": per_class(FLOWERS, counts),
            "reliability": reliability(rows, 1),
            "layers": layers(38, 2),
            "mistakes": [
                {
                    "id": f"{t}/{1000 + 37 * i}.jpg",
                    "truth": t,
                    "predicted": p,
                    "confidence": 0.993 - 0.021 * i,
                    "thumbnail": pictures[i % len(pictures)],
                }
                for i, (t, p) in enumerate(wrong)
            ],
            "floor_seconds": 22.9,
        },
        seeds={"split": 0, "solve": 0},
        versions=VERSIONS,
        command="regraft adapt flowers5/ --model google/mobilenet_v2_1.0_224 --method all-layers --seed 0",
        citations=CITATIONS,
        created="2026-11-20T10:41:07+00:00",
        paths={
            "run": "runs/flowers5",
            "artifact": "runs/flowers5/model.safetensors",
            "report": "runs/flowers5/report.html",
        },
        artifact_bytes=1_482_113,
    )


def cross_validated(classes: int = 26) -> Record:
    """Many classes (a dense heat map up to 30), outer cross-validation, a warm store."""
    names = tuple(f"species {chr(97 + i % 26)}{i // 26 or ''}" for i in range(classes))
    counts = matrix(classes, 3120, 0.81, classes)
    accuracy = sum(counts[i][i] for i in range(classes)) / 3120
    folds = (accuracy - 0.012, accuracy + 0.009, accuracy + 0.002, accuracy - 0.004, accuracy + 0.005)
    return Record(
        verb="adapt",
        status="done",
        method="probe",
        task={"kind": "multiclass", "classes": list(names), "rows": 3120},
        model={"name": "timm/vit_small_patch16_224.augreg_in21k", "licence": "Apache-2.0", "fingerprint": "ab" * 32},
        data={"name": "/data/birds/photos/", "rows": 3120, "fingerprint": "cd" * 32},
        scores={
            "validation": Score(
                "accuracy",
                accuracy,
                accuracy - 0.0141,
                accuracy + 0.0134,
                "bootstrap over groups",
                3120,
                folds,
                "outer cross-validation",
            ),
            "test": None,
        },
        other_scores={
            "validation": (
                Score("nll", 0.702, 0.66, 0.748, "bootstrap over groups", 3120, protocol="outer cross-validation"),
                Score("ece", 0.0221, 0.015, 0.03, "bootstrap over groups", 3120, protocol="outer cross-validation"),
            )
        },
        costs=(
            Cost("sweep", 0.41, 0.4, 0.0, 0, 900_000_000, reused=True),
            Cost("solve", 0.79, 1.5, 0.0, 0, 950_000_000),
        ),
        figures={
            "confusion": {"classes": list(names), "counts": counts, "rows": "out-of-fold"},
            "classes": per_class(names, counts),
            "reliability": reliability(3120, 3),
            "mistakes": [
                {
                    "id": f"row {i}",
                    "truth": names[i],
                    "predicted": names[i + 1],
                    "confidence": 0.9 - i / 50,
                    "thumbnail": None,
                }
                for i in range(6)
            ],
            "floor_seconds": 71.3,
        },
        candidates=tuple(Candidate("ridge", 10.0**p, 0.8 - 0.002 * p * p, 0.01, p == 0) for p in range(-4, 5)),
        versions=VERSIONS,
        command="regraft adapt photos/ --model timm/vit_small_patch16_224.augreg_in21k --group bird",
    )


def many_classes() -> Record:
    """Fifty classes: the confused pairs stand in a table."""
    return cross_validated(50)


def regression() -> Record:
    """One output, R² and RMSE, a scatter."""
    rng = np.random.default_rng(4)
    truth = rng.gamma(6, 6, 309)
    predicted = truth + rng.normal(0, 5.5, 309)
    return Record(
        verb="adapt",
        status="done",
        method="probe",
        task={"kind": "regression", "classes": ["strength"], "rows": 1030},
        model={"name": "regraft/small-resnet", "licence": "MIT", "parameters": 176_000},
        data={"name": "concrete", "rows": {"train": 721, "test": 309}},
        scores={
            "test": Score("r2", 0.8542, 0.818, 0.883, "bootstrap over rows", 309, protocol="test split"),
            "validation": None,
        },
        other_scores={"test": (Score("rmse", 5.61, 5.12, 6.13, "bootstrap over rows", 309, protocol="test split"),)},
        candidates=tuple(Candidate("ridge", 10.0**p, 0.85 - 0.004 * (p - 1) ** 2, 0.012, p == 1) for p in range(-4, 5)),
        costs=(Cost("sweep", 3.2, 6.0, 1.0, 2_100_000_000, 600_000_000), Cost("solve", 0.2, 0.3, 0.0, 0, 610_000_000)),
        figures={
            "scatter": [{"truth": float(t), "predicted": float(p)} for t, p in zip(truth, predicted, strict=True)],
            "layers": layers(9, 5),
        },
        command="regraft adapt concrete.csv --model regraft/small-resnet --method probe",
        versions=VERSIONS,
    )


def multilabel() -> Record:
    """Twelve labels with missing ones; an optimistic score."""
    rng = np.random.default_rng(6)
    names = [f"NR-{n}" for n in ("AR", "AR-LBD", "AhR", "Aromatase", "ER", "ER-LBD", "PPAR-gamma")] + [
        "SR-ARE",
        "SR-ATAD5",
        "SR-HSE",
        "SR-MMP",
        "SR-p53",
    ]
    return Record(
        verb="adapt",
        status="done",
        method="all-layers",
        task={"kind": "multilabel", "classes": names, "rows": 8014},
        model={"name": "facebook/dinov2-small", "licence": "Apache-2.0"},
        data={"name": "tox21", "rows": 8014, "missing labels": 16_595},
        scores={
            "validation": Score(
                "map",
                0.4127,
                0.391,
                0.436,
                "bootstrap over groups",
                8014,
                protocol="inner cross-validation (selection: optimistic)",
            )
        },
        costs=costs(9_300_000_000_000),
        findings=(
            Finding(
                "optimistic",
                "The score chose the settings",
                "warning",
                advice="Name a test split.",
                detail="No outer folds were made.",
            ),
        ),
        figures={
            "classes": [
                {
                    "name": n,
                    "rows": int(rng.integers(5000, 8000)),
                    "recall": float(rng.uniform(0.3, 0.8)),
                    "precision": None if i == 3 else float(rng.uniform(0.3, 0.9)),
                    "average_precision": float(rng.uniform(0.2, 0.7)),
                }
                for i, n in enumerate(names)
            ]
        },
        command="regraft adapt tox21.parquet",
    )


def head2toe() -> Record:
    """Features chosen from all layers."""
    return chosen_samples.head2toe(multiclass())


def finetuned() -> Record:
    """A backbone that was trained."""
    return chosen_samples.finetuned(multiclass())


def minimal() -> Record:
    """Nothing but the fields that must be there."""
    return Record("adapt", "done", "", {}, {}, {}, {})


def broken() -> Record:
    """Absent, null, infinite and mistyped values in every place: the page must survive and stay silent."""
    nan, inf = math.nan, math.inf
    junk: list[Any] = [None, nan, inf, "x", 3, [], {}, True]
    return Record(
        verb="adapt",
        status="done",
        method="probe",
        task={"kind": None, "rows": nan, "classes": [None, 3, "a"], "deep": {"x": None, "y": [1, nan]}},
        model={"name": None, "fingerprint": None, "parameters": inf},
        data={"name": 7, "empty": {}, "none": None},
        scores={
            "test": Score("accuracy", nan, nan, nan, "", 0),
            "validation": Score("f1", 0.5, nan, inf, "bootstrap over rows", 9),
        },
        other_scores={"validation": (Score("nll", inf, nan, nan, "", 9), Score("r2", -3.2, -9.0, 0.2, "", 9))},
        candidates=(Candidate("ridge", nan, 0.4, nan), Candidate("ridge", 0.0, 0.4, 0.1), Candidate("", 1.0, nan, 0.1)),
        costs=(Cost("sweep", nan, nan, nan, 0, 0), Cost("solve", 0.0)),
        findings=(Finding("odd", "An odd one", "strange", nan, "rows", inf, None),),  # type: ignore[arg-type]
        figures={
            "confusion": {"classes": ["a", "b"], "counts": [[1, None], [nan]]},
            "reliability": {
                "bins": [*junk, {"low": 0, "high": 1, "confidence": nan, "accuracy": 0.5, "count": 3}],
                "ece": nan,
            },
            "layers": [*junk, {"name": None, "share": nan}, {"name": "last", "share": 0.0, "depth": None}],
            "mistakes": [
                *junk,
                {
                    "id": None,
                    "truth": None,
                    "predicted": "b",
                    "confidence": nan,
                    "thumbnail": "https://example.org/x.png",
                },
            ],
            "scatter": [*junk, {"truth": nan, "predicted": 1.0}],
            "classes": [*junk, {"name": "a", "rows": None, "recall": nan, "precision": None}],
            "floor_seconds": nan,
            "selection": {
                "kept": nan,
                "width": 3,
                "layers": [*junk, {"name": None, "kept": 1}],
                "grid": [*junk, {"fraction": 0}],
                "folds": {"overlap": nan, "matrix": [*junk]},
            },
            "price": {"rows": [*junk, {"name": "this run"}, {"name": "probe", "passes": nan}], "finetune": None},
            "training": {"runs": [*junk, {"name": None, "epochs": [*junk, {"epoch": 1, "loss": nan}]}], "metric": 3},
        },
        versions={"torch": None},  # type: ignore[dict-item]
        citations=("",),
    )


ALL = {
    "multiclass": multiclass,
    "cross-validated": cross_validated,
    "many-classes": many_classes,
    "regression": regression,
    "multilabel": multilabel,
    "head2toe": head2toe,
    "finetuned": finetuned,
    "minimal": minimal,
    "broken": broken,
}
