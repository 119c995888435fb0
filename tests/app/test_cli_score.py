"""`regraft score`: what is asked of it reaches it, and what it names."""

from __future__ import annotations

from types import SimpleNamespace

from tests.app.test_cli import adapted, photos  # noqa: F401

from regraft.app import scoring
from regraft.errors import DataError


def test_the_lowest_outputs_are_named_from_the_lowest_on(capsys):
    outputs = [{"name": n, "recall": r, "rows": 3} for n, r in zip("abcde", (0.9, 0.1, 0.7, None, 0.2))]
    headline = SimpleNamespace(stated="accuracy 1", rows=15, protocol="later", metric="accuracy")
    scored = SimpleNamespace(headline=headline, others=(), undefined=())
    scoring._say(SimpleNamespace(scored=scored, rows=SimpleNamespace(skipped=())), [], outputs, None)
    assert "recall of b 0.10 (3 rows), e 0.20 (3 rows), c 0.70 (3 rows)\n" in capsys.readouterr().out


def test_what_is_asked_of_a_score_reaches_it(regraft, adapted, photos, monkeypatch):  # noqa: F811
    asked = {}

    def score_on(_adapted, _data, **options):
        asked.update(options)
        raise DataError("seen")

    monkeypatch.setattr("regraft.graft.score_on", score_on)
    regraft("score", adapted, photos, "--group", "patient", "--seed", 5, "--batch-size", 7, "--input", "file")
    wanted = {"group": "patient", "seed": 5, "batch_size": 7, "input": "file", "metric": "accuracy"}  # the run's metric
    assert {name: asked[name] for name in wanted} == wanted
