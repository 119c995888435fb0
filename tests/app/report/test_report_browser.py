"""The page in a real headless Chromium: it renders, its interactions work, and nothing leaves the file."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.app.report import samples
from tests.app.report.test_report_diagnosis import bowl, figures
from tests.app.report.test_report_render import XSS, with_every_string

from regraft.app.report import write
from regraft.record import Finding, Record

FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium: install one or name it in the environment variable CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS.split())
        yield chromium
        chromium.close()


@dataclass
class Visit:
    """An open page with everything it did that a report must not do."""

    page: Any
    noise: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    contexts = []

    def open_page(record: Record, width: int = 1440, scheme: str = "light", script: str = "", **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        seen = Visit(page)
        page.on("console", lambda message: seen.noise.append(message.text))
        page.on("pageerror", lambda error: seen.noise.append(str(error)))
        page.on("dialog", lambda dialog: (seen.noise.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: seen.requests.append(request.url))
        if script:
            page.add_init_script(script)
        page.goto(write(record, tmp_path / "report.html").as_uri())
        return seen

    yield open_page
    for context in contexts:
        context.close()


WIDTH = "document.documentElement.scrollWidth"

# The WCAG contrast of every piece of text against the first opaque background behind it.
CONTRAST = """() => {
  const canvas = document.createElement("canvas"); canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => { context.clearRect(0, 0, 1, 1); context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return Array.from(context.getImageData(0, 0, 1, 1).data); };
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const bad = []; let checked = 0;
  const walker = document.createTreeWalker(document.querySelector(".page"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const front = rgb(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(front), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    checked += 1;
    if (ratio < 4.5) bad.push([walker.currentNode.data.trim().slice(0, 30), element.className, ratio]);
  }
  return {bad, checked};
}"""


@pytest.mark.parametrize("name", samples.ALL)
def test_renders_quietly_and_without_a_request(visit: Any, name: str) -> None:
    seen = visit(samples.ALL[name]())
    seen.page.wait_for_timeout(100)  # a request made late would show
    assert seen.page.locator("h1").is_visible()
    assert seen.page.locator(".verdict").inner_text().endswith(".")
    assert seen.noise == []
    assert [url for url in seen.requests if not url.startswith(("file://", "data:"))] == []
    assert [url for url in seen.requests if url.startswith("file://")] == [seen.page.url]
    for width in (1440, 390, 320):
        seen.page.set_viewport_size({"width": width, "height": 900})
        assert seen.page.evaluate(WIDTH) <= width
    broken = "Array.from(document.images).filter((i) => !i.complete || !i.naturalWidth).length"
    assert seen.page.evaluate(broken) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["multiclass", "cross-validated", "regression", "head2toe", "finetuned"])
def test_every_text_is_readable(visit: Any, name: str, scheme: str) -> None:
    page = visit(samples.ALL[name](), scheme=scheme).page
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 120) == (scheme == "dark")
    found = page.evaluate(CONTRAST)
    assert found["checked"] > 80
    assert found["bad"] == []


def test_tables_sort_both_ways(visit: Any) -> None:
    page = visit(samples.multiclass()).page
    table = page.locator("#classes table")

    def column(n: int) -> list[str]:
        return [text.strip() for text in table.locator(f"tbody tr > :nth-child({n})").all_inner_texts()]

    first = column(1)
    rows = table.get_by_role("button", name="Rows")
    rows.click()
    assert column(2) == ["203", "170", "168", "166", "157"]
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("Rows")
    rows.click()
    assert column(2) == ["157", "166", "168", "170", "203"]
    table.get_by_role("button", name="Class").press("Enter")
    assert column(1) == sorted(first)
    assert table.locator("[aria-sort]").count() == 1


def test_missing_values_sort_last(visit: Any) -> None:
    page = visit(samples.multilabel()).page
    button = page.locator("#classes").get_by_role("button", name="Precision", exact=True)
    for _ in range(2):
        button.click()
        assert page.locator("#classes tbody tr").last.locator("td").nth(2).inner_text() == "–"


def test_long_names_of_confused_classes_wrap_and_the_counts_are_in_view(visit: Any) -> None:
    record = samples.many_classes()
    confusion = record.figures["confusion"]
    named = {**confusion, "classes": [f"{name}_{'averylongname' * 6}" for name in confusion["classes"]]}
    page = visit(replace(record, figures={**record.figures, "confusion": named}), width=1280).page
    table = page.locator('.scroll[aria-label="Most confused pairs"]')
    assert table.evaluate("(e) => e.scrollWidth - e.clientWidth") <= 1


def test_confusion_switches_between_counts_and_shares(visit: Any) -> None:
    page = visit(samples.multiclass()).page
    cell = page.locator(".matrix tbody tr").nth(2).locator("td").nth(4)
    assert cell.inner_text() == "19"
    page.get_by_text("Per cent of row").click()
    assert cell.inner_text() == "12.1"
    page.locator("#unit-rate").press("ArrowLeft")
    assert cell.inner_text() == "19"


def test_tooltips_answer_to_mouse_keyboard_and_touch(visit: Any) -> None:
    page = visit(samples.multiclass()).page
    tip = page.locator("#tip")
    assert tip.is_hidden()
    cells = page.locator(".matrix tbody td.right, .matrix tbody td.wrong")
    cells.nth(1).hover()
    assert tip.inner_text().replace("\u00a0", " ") == "truth daisy, predicted dandelion: 8 of 168 rows (4.8 %)"
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    cells.nth(0).focus()
    page.keyboard.press("ArrowDown")
    assert "truth dandelion, predicted daisy" in tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert "truth dandelion, predicted dandelion" in tip.inner_text()
    page.locator("#reliability .mark").last.hover()
    assert "mean confidence" in tip.inner_text()
    page.locator("#strengths .chosen.mark").hover()
    assert "ridge λ = 0.01: 90.5" in tip.inner_text()
    assert "chosen" in tip.inner_text()
    page.locator("#facts .full").first.hover()
    assert tip.inner_text() == samples.multiclass().model["fingerprint"]
    assert page.locator("[title], svg title").count() == 0


def test_tooltips_on_a_phone_stay_on_the_screen(visit: Any) -> None:
    page = visit(samples.multiclass(), width=390, has_touch=True, is_mobile=True).page
    page.locator(".matrix tbody td.wrong").nth(3).tap()
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.locator("h1").tap()
    assert page.locator("#tip").is_hidden()


@pytest.mark.parametrize("section", ["cost", "training"])
def test_costs_and_trainings_lie_whole_on_a_phone_with_their_names(visit: Any, section: str) -> None:
    page = visit(samples.finetuned(), width=390).page
    cells = page.locator(f"#{section} .stacked tbody td")
    names = page.locator(f"#{section} .stacked thead th:not(:first-child)")
    assert {cell.get_attribute("data-label") for cell in cells.all()} == {
        name.text_content().strip() for name in names.all()
    }
    for cell in cells.all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    for row in page.locator(f"#{section} .stacked tbody tr").all():  # the run's own, in bold, as close as the others
        assert row.locator("th").bounding_box()["y"] - row.bounding_box()["y"] < 12
    wide = visit(samples.finetuned(), width=1200).page
    assert wide.locator(f"#{section} .stacked thead").first.bounding_box()["width"] > 600


def test_copy_button_copies_the_command(visit: Any) -> None:
    spy = "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (t) => { window.copied = t; }}});"
    page = visit(samples.multiclass(), script=spy).page
    page.locator(".copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("window.copied") == samples.multiclass().command


def test_copy_button_works_where_the_clipboard_is_not_allowed(visit: Any) -> None:
    spy = "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
    spy += "document.addEventListener('copy', () => { window.copied = String(getSelection()); });"
    page = visit(samples.multiclass(), script=spy).page
    page.locator(".copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("window.copied") == samples.multiclass().command


@pytest.mark.parametrize("payload", [XSS[0], XSS[1], XSS[4]])
def test_injected_names_are_text(visit: Any, payload: str) -> None:
    seen = visit(with_every_string(samples.multiclass(), lambda text: payload + text))
    page = seen.page
    page.locator(".matrix tbody td").first.hover()
    page.locator(".matrix tbody td").nth(1).click()
    for button in page.locator("thead button").all()[:4]:
        button.click()
    assert payload in page.locator("#tip").text_content() or page.locator("#tip").is_hidden()
    assert page.locator(".matrix tbody th").first.text_content() == payload + "daisy"
    assert page.locator("script").count() == 1
    assert page.locator("[onerror], [onmouseover], [onload], [onfocus], iframe").count() == 0
    assert seen.noise == []
    assert [url for url in seen.requests if not url.startswith(("file://", "data:"))] == []
    assert page.evaluate(WIDTH) <= 1440


def test_the_policy_stops_a_script_that_got_in(visit: Any) -> None:
    """The second lock: even markup that was never escaped could not run."""
    seen = visit(samples.minimal())
    seen.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.hit = 1'><a href='#'></a>`)"
    )
    seen.page.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert seen.page.evaluate("window.hit") is None
    assert any("Content Security Policy" in message for message in seen.noise)


def test_everything_essential_is_there_without_scripts(visit: Any) -> None:
    page = visit(samples.multiclass(), java_script_enabled=False).page
    assert page.locator(".matrix tbody td.wrong").nth(0).get_attribute("title")
    assert page.locator("#strengths svg title").count() > 20
    assert page.locator(".copy").is_hidden()
    page.get_by_text("Per cent of row").click()
    assert page.locator(".matrix tbody tr").nth(2).locator("td").nth(4).inner_text() == "12.1"
    page.locator("#strengths summary").click()
    assert page.locator("#strengths table").is_visible()
    for key in ("scores", "cost", "confusion", "reliability", "findings", "reproduce", "citations"):
        assert page.locator(f"#{key}").is_visible()


def test_structure_for_assistive_technology(visit: Any) -> None:
    page = visit(samples.multiclass()).page
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("navigation", name="Sections").count() == 1
    assert page.locator("h1").count() == 1
    levels = page.evaluate("Array.from(document.querySelectorAll('h1,h2,h3,h4')).map((h) => Number(h.tagName[1]))")
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("svg:not([aria-label]):not([aria-hidden])").count() == 0
    assert page.locator("img:not([alt])").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    # a chart or a matrix is one tab stop, however many marks it has
    assert page.locator(".matrix td[tabindex='0']").count() == 1


def test_the_section_in_view_is_marked(visit: Any) -> None:
    page = visit(samples.multiclass()).page
    page.locator(".rail a", has_text="Confusion").click()
    page.locator(".rail a[aria-current]", has_text="Confusion").wait_for()
    assert page.locator(".rail a[aria-current]").count() == 1


def test_the_sections_stay_on_top_of_a_narrow_page(visit: Any) -> None:
    page = visit(samples.multiclass()).page
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".rail a", has_text="Confusion").click()
    page.locator(".rail a[aria-current]", has_text="Confusion").wait_for()
    assert page.evaluate("window.scrollY") > 400
    assert page.locator(".rail").evaluate("(e) => e.getBoundingClientRect().top") == 0
    assert page.locator(".rail").evaluate("(e) => e.clientHeight") < 50
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_print_shows_whole_tables_and_no_buttons(visit: Any) -> None:
    page = visit(samples.cross_validated()).page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(".copy").is_hidden()
    assert page.locator(".rail").is_hidden()
    box = page.locator("#classes .scroll")
    assert box.evaluate("(e) => e.clientHeight >= e.scrollHeight - 1")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_layers_of_a_selection_answer_to_the_pointer(visit: Any) -> None:
    page = visit(samples.head2toe()).page
    bars = page.locator("#selection .depth .mark")
    assert bars.count() == len(samples.head2toe().figures["selection"]["layers"])
    bars.last.hover()
    assert "a blind choice would take" in page.locator("#tip").inner_text()
    page.locator("#selection .chosen.mark").first.hover()
    assert page.locator("#tip").inner_text().endswith(", chosen")
    page.locator("#selection summary").first.click()
    kept = page.locator("#selection details").first.get_by_role("button", name="Kept", exact=True)
    kept.click()
    column = page.locator("#selection details").first.locator("tbody tr > :nth-child(3)").all_inner_texts()
    numbers = [int(text) for text in column]
    assert numbers == sorted(numbers, reverse=True)


def test_both_plots_of_the_grid_stand_under_one_another(visit: Any) -> None:
    for width in (1440, 390):
        page = visit(samples.head2toe(), width=width).page
        above = page.locator("#selection .plot:not(.under) .chosen.mark").bounding_box()
        below = page.locator("#selection .plot.under .chosen").bounding_box()
        assert above["x"] + above["width"] / 2 == pytest.approx(below["x"] + below["width"] / 2, abs=1)
        assert above["y"] < below["y"]


def test_nothing_of_a_chart_is_cut_off_on_a_phone(visit: Any) -> None:
    outside = """() => Array.from(document.querySelectorAll("#selection svg text, #training svg text"))
      .filter((t) => t.checkVisibility() && t.textContent.trim())
      .map((t) => [t.textContent, t.getBoundingClientRect()])
      .filter(([, box]) => box.left < 0 || box.right > document.documentElement.clientWidth)
      .map(([text]) => text)"""
    for name in ("head2toe", "finetuned"):
        assert visit(samples.ALL[name](), width=390).page.evaluate(outside) == []


def test_wide_tables_scroll_inside_themselves(visit: Any) -> None:
    page = visit(samples.head2toe(), width=390).page
    page.locator("#selection summary").first.click()
    assert page.locator("#selection .scroll").first.evaluate("(e) => e.scrollWidth > e.clientWidth")
    assert page.evaluate(WIDTH) <= 390


SCORES = ("logme", "h-score", "h-score-shrunk", "transrate", "loo-accuracy", "loo-r2", "neighbour-accuracy", "leep",
          "nce")  # fmt: skip


def diagnosed() -> Record:
    """A diagnosis and a ranking in one, with names as long as they come."""
    shown = figures()
    meaning = "Variance between classes over variance, summed over directions, covariances shrunk: from 0 to 4."
    shown["transfer"]["scores"] = [{"name": name, "value": -0.3, "low": -0.316, "high": -0.277, "meaning": meaning}
                                   for name in SCORES]  # fmt: skip
    shown["ranking"]["names"] = list(SCORES)
    for model, value in zip(shown["ranking"]["models"], (-0.3, 1.2, -72.25), strict=True):
        model |= {"name": "org/mobilenet_v1_0.25_128", "scores": dict.fromkeys(SCORES, value)}
    shown["landscape"]["subjects"][1]["losses"] = bowl(0.0)  # which lies as low as a surface can
    told = Finding("x", "Features not measured", "not-applicable", detail="To mend it: name rows with --source, " * 6)
    return replace(samples.multiclass(), verb="diagnose", findings=(told,), figures=shown)


def test_tables_of_a_diagnosis_are_whole_on_a_desk(visit: Any) -> None:
    page = visit(diagnosed(), width=1200).page
    over = "Array.from(document.querySelectorAll('.scroll')).map((e) => [e.ariaLabel, e.scrollWidth - e.clientWidth])"
    found = dict(page.evaluate(over))
    assert {"All scores", "Gradients", "Curvature", "Transferability scores"} <= set(found)
    assert not any(found.values())
    assert page.locator("#transfer .beneath").first.is_hidden()


def test_meanings_stand_under_the_scores_on_a_phone(visit: Any) -> None:
    page = visit(diagnosed(), width=390).page
    assert page.locator("#transfer td.meaning").first.is_hidden()
    table, under = (page.locator(f"#transfer {part}").first.bounding_box() for part in ("table", ".beneath td"))
    assert under["width"] == pytest.approx(table["width"], abs=1)
    assert under["height"] < 60
    assert table["width"] <= 390 - 36
    assert page.evaluate(WIDTH) <= 390


@pytest.mark.parametrize("width", [1200, 390, 320])
def test_options_are_never_broken_and_surfaces_never_cut(visit: Any, width: int) -> None:
    page = visit(diagnosed(), width=width).page
    rows = "Array.from(document.querySelectorAll('code.said')).map((e) => e.getClientRects().length)"
    assert set(page.evaluate(rows)) == {1}
    outside = """() => Array.from(document.querySelectorAll("svg.surface")).flatMap((svg) => {
      const box = svg.getBoundingClientRect();
      return Array.from(svg.querySelectorAll("polygon")).map((p) => p.getBoundingClientRect()).filter((p) =>
        p.top < box.top || p.bottom > box.bottom || p.left < box.left || p.right > box.right);
    }).length"""
    assert page.locator("svg.surface polygon").count() > 50
    assert page.evaluate(outside) == 0


def test_scores_below_zero_sort_as_numbers(visit: Any) -> None:
    page = visit(diagnosed()).page
    page.locator("#ranking thead button", has_text="logme").click()
    shown = page.locator("#ranking tbody tr td:nth-child(3)").all_inner_texts()
    assert shown == ["1.20", "−0.300", "−72.2"]
