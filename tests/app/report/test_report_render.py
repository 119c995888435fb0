"""The page as text: pure, complete in itself, and deaf to whatever strings the Record holds."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.app.report import samples

from regraft.app.report import render, write
from regraft.errors import DataError, StoreError
from regraft.record import Finding, Record

XSS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "</title><svg onload=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' onfocus='alert(1)' autofocus '",
    "<!-- --><iframe src=javascript:alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "]]><a href='javascript:alert(1)'>x</a>",
    "&lt;b&gt; &amp;quot; &#60;",
    "<svg><title></title><image href='https://example.org/x'/></svg>",
    "\u202eevil\u2028\u0000\ud800",
)


class Outline(HTMLParser):
    """The page's elements with their attributes' names, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.silent = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # a place where a long path may be broken, and what a sentence names as code
        if tag != "wbr" and not (tag == "code" and dict(attrs).get("class") in ("said", "said long")):
            self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in ("script", "style"):
            self.silent = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self.silent:
            self.silent = ""

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def with_every_string(record: Record, change: Callable[[str], str]) -> Record:
    """The Record with every string value, and every key of its free mappings, changed."""

    def walk(value: Any, keys: bool) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [walk(v, keys) for v in value]
        if isinstance(value, dict):
            return {(f"{change(k)}{i}" if keys else k): walk(v, keys) for i, (k, v) in enumerate(value.items())}
        return value

    def entry(name: str, value: Any) -> Any:
        if name in ("task", "model", "data"):  # names keep their keys, so that the title and the verdict show them
            free = {k: v for k, v in value.items() if k != "name"}
            return {"name": change(""), **walk(free, keys=True)}
        return walk(value, keys=name in ("seeds", "versions", "paths"))

    json = copy.deepcopy(record.to_json())
    return Record.from_json({k: v if k == "schema" else entry(k, v) for k, v in json.items()})


@pytest.mark.parametrize("name", samples.ALL)
def test_render_is_a_pure_function_of_the_record(name: str) -> None:
    record = samples.ALL[name]()
    before = copy.deepcopy(record.to_json())
    html = render(record)
    assert html == render(samples.ALL[name]())
    assert record.to_json() == before
    if name != "broken":
        assert html == render(Record.from_json(before))


@pytest.mark.parametrize("name", samples.ALL)
def test_no_missing_value_reaches_the_reader(name: str) -> None:
    outline = Outline(render(samples.ALL[name]()))
    shown = outline.text + " ".join(
        value
        for _, name, value in outline.attributes
        if name != "preserveaspectratio" and not value.startswith(("data:", "default-src"))
    )
    bad = re.findall(r"\b(nan|none|null|inf|undefined)\b(?! of the)", shown, re.I)
    assert not bad
    assert not re.search(r"\b(True|False)\b", shown)
    assert "( )" not in outline.text
    assert "()" not in outline.text


@pytest.mark.parametrize("name", samples.ALL)
def test_the_page_is_complete_in_itself(name: str) -> None:
    outline = Outline(render(samples.ALL[name]()))
    sources = [(t, n, v) for t, n, v in outline.attributes if n in ("src", "href", "srcset", "xlink:href", "action")]
    for tag, _, value in sources:
        assert value.startswith("data:image/" if tag == "img" else ("#", "data:,")), (tag, value)
    assert not {tag for tag, _ in outline.elements} & {"iframe", "object", "embed", "form", "base", "audio", "video"}
    style = re.search(r"<style>(.*?)</style>", render(samples.ALL[name]()), re.S)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_names_the_hashes_of_the_only_script_and_style() -> None:
    html = render(samples.multiclass())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1].replace("&#39;", "'")
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
        expected = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{kind} 'sha256-{expected}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy


def test_there_is_no_inline_style_or_handler() -> None:
    names = {name for _, name, _ in Outline(render(samples.multiclass())).attributes}
    assert "style" not in names
    assert not {name for name in names if name.startswith("on")}


def test_ids_are_unique_and_labels_point_to_them() -> None:
    attributes = Outline(render(samples.multiclass())).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    pointed = [v for _, name, v in attributes if name in ("for", "aria-labelledby", "data-copy")]
    pointed += [v[1:] for tag, name, v in attributes if tag == "a" and name == "href"]
    assert pointed
    assert set(pointed) <= set(ids)


def outline_with(record: Record, text: str) -> Outline:
    return Outline(render(with_every_string(record, lambda _: text)))


@pytest.mark.parametrize("payload", XSS)
@pytest.mark.parametrize("name", ["multiclass", "many-classes", "regression"])
def test_no_string_of_the_record_changes_the_page_s_elements(name: str, payload: str) -> None:
    record = samples.ALL[name]()
    attacked = outline_with(record, f"z{payload}z")
    assert attacked.elements == outline_with(record, "zz").elements
    shown = re.sub("[\x00\ud800]", "\ufffd", f"z{payload}z")
    assert shown in attacked.text


ODD = st.text(st.sampled_from("<>&\"'`/=;:{}%#\\-! \n\tabzé\u202e\u0000\ud83d😀"), max_size=40)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ODD)
def test_odd_strings_never_change_the_page_s_elements(odd: str) -> None:
    record = samples.multiclass()
    assert outline_with(record, f"z{odd}z").elements == outline_with(record, "zz").elements
    render(with_every_string(record, lambda _: odd)).encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**400), 10**400) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_figures_are_survived(data: st.DataObject) -> None:
    keys = ["confusion", "reliability", "layers", "mistakes", "scatter", "classes", "floor_seconds"]
    fields = ["classes", "counts", "bins", "ece", "low", "high", "confidence", "accuracy", "count", "name", "share"]
    fields += ["depth", "truth", "predicted", "strength", "score", "standard_error", "chosen", "form", "recall", "rows"]
    row = st.dictionaries(st.sampled_from(fields), JSON | st.floats(-5, 5), max_size=12)
    value = JSON | row | st.lists(row, max_size=4) | st.fixed_dictionaries({"bins": st.lists(row, max_size=3)})
    figures = data.draw(st.dictionaries(st.sampled_from(keys), value, max_size=4))
    empty = samples.minimal()
    record = Record("adapt", "done", "probe", *(data.draw(row) for _ in range(3)), {}, figures=figures)
    html = render(record)
    assert html.startswith("<!DOCTYPE html>")
    assert len(html) >= len(render(empty)) - 200


def test_write_is_atomic_and_returns_the_path(tmp_path: Path) -> None:
    target = tmp_path / "run" / "report.html"
    assert write(samples.minimal(), target) == target
    assert target.read_text(encoding="utf-8") == render(samples.minimal())
    write(samples.multiclass(), str(target))
    assert target.read_text(encoding="utf-8") == render(samples.multiclass())
    assert [p.name for p in target.parent.iterdir()] == ["report.html"]


def test_write_into_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write"):
        write(samples.minimal(), tmp_path / "file" / "report.html")


def test_write_replaces_no_page_that_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!DOCTYPE html><title>How I use regraft</title>")
    with pytest.raises(DataError, match=r"index\.html is no report; expected a new file, or a report"):
        write(samples.minimal(), tmp_path / "index.html")
    assert (tmp_path / "index.html").read_text() == "<!DOCTYPE html><title>How I use regraft</title>"
    (tmp_path / "empty.html").touch()
    assert write(samples.minimal(), tmp_path / "empty.html").stat().st_size > 0


def test_write_replaces_no_report_of_another_run(tmp_path: Path) -> None:
    one, other = samples.minimal(), samples.multiclass()
    one.save(tmp_path / "record.json")
    there = write(one, tmp_path / "report.html").read_text()
    with pytest.raises(DataError, match="holds another run"):
        write(other, tmp_path / "report.html")
    assert write(one, tmp_path / "report.html").read_text() == there
    write(other, tmp_path / "other.html")


@pytest.mark.parametrize("name", ["record.json", "photo.png", "folder"])
def test_write_replaces_no_file_that_is_no_page(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError, match=f"cannot write a report as {name}; expected a .html file"):
        write(samples.minimal(), tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"


def findings(**said: str) -> Record:
    found = Finding("odd", **{"title": "", **said}, value=0.5)
    return replace(samples.multiclass(), findings=(found,))


def test_code_in_a_sentence_is_set_as_such_and_stays_whole() -> None:
    html = render(findings(title="Train with `--method lp-ft`", detail="Name rows with --source, or -0.2 ± 9e-05.",
                           advice="Try `regraft rank`: " + "`" + "long " * 8 + "`"))  # fmt: skip
    assert '<h3>Train with <code class="said">--method lp-ft</code>' in html
    assert 'Name rows with <code class="said">--source</code>, or −0.2 ± 9\u00a0×\u00a010⁻⁵.' in html
    assert '<code class="said">regraft rank</code>: <code class="said long">long long' in html
    assert "`" not in Outline(html).text


@pytest.mark.parametrize("payload", [*XSS, "a&b"])
def test_code_in_a_sentence_is_escaped(payload: str) -> None:
    quiet = Outline(render(findings(title="z`zz`", advice="z --zz")))
    for said in ({"title": f"z`{payload}`", "advice": "z --zz"}, {"title": "z`zz`", "advice": f"{payload} --zz"}):
        attacked = Outline(render(findings(**said)))
        assert attacked.elements == quiet.elements
        assert re.sub("[\x00\ud800]", "\ufffd", payload) in attacked.text


def test_backticks_of_a_name_stay_in_the_verdict_of_a_run() -> None:
    record = replace(samples.multiclass(), model={"name": "a`b`c -3"})
    assert "a`b`c -3" in Outline(render(record)).text


def test_warnings_stand_below_the_verdict_and_lead_to_the_findings() -> None:
    plain = replace(samples.multiclass(), findings=())
    loud = replace(plain, findings=(
        Finding("a", "Thirty inputs are in two splits.", "warning"), Finding("b", "Try more.", "advice"),
    ))  # fmt: skip
    html = render(loud)
    head = html[: html.index("</header>")]
    assert 'href="#findings">Thirty inputs are in two splits.' in head
    assert "Try more." not in head
    assert 'class="mind"' not in render(plain)
    for verb in ("diagnose", "rank"):  # there findings come first
        assert 'class="mind"' not in render(replace(loud, verb=verb))


def test_long_names_may_break_and_numbers_may_not() -> None:
    html = render(samples.multiclass())
    assert "google/<wbr>mobilenet_<wbr>v2_<wbr>1.0_<wbr>224" in html
    assert "features.<wbr>1" not in html


@pytest.mark.parametrize("names", [("road", "sky"), tuple(map(str, range(40)))])
def test_counts_of_pixels_stand_in_a_column_of_pixels(names: tuple[str, ...]) -> None:
    """In the map of a few classes and in the table of pairs of many."""
    counts = [[3 if i == j else 1 for j in range(len(names))] for i in range(len(names))]
    for rows, unit, other in (("pixels", "pixels", "rows"), ("test", "rows", "pixels")):
        figure = {"classes": list(names), "counts": counts, "rows": rows}
        page = render(replace(samples.minimal(), figures={"confusion": figure}))
        heads = re.findall(r'<th scope="col" class="(?:total|n)">(?:<span>)?([^<]*)', page)
        assert any(head.endswith(unit) for head in heads)
        assert not any(head.endswith(other) for head in heads)
