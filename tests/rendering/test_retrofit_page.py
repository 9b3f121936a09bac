"""The page of `retrofit` in a real browser: before and after, in figures, pictures and words."""

from __future__ import annotations

import html
import json
import math
import re

import pytest

from quietformer.config.attention import AttentionSpec
from quietformer.rendering.page import page
from quietformer.rendering.plots import unpack
from quietformer.rendering.slim_retrofit import slim
from quietformer.results.convert import ConvertReport
from quietformer.results.inspect import PackedMatrix
from tests.rendering.as_report import as_report
from tests.rendering.marks import in_browser, on_every_screen
from tests.rendering.retrofits import retrofit
from tests.rendering.tabs import text, wait_until

EVIL = "</script><img src=x onerror=alert(1)>\"'/*SCRIPT*/"
LONG = "very_long_name_" * 20


def cells(tab, selector) -> list[list[str]]:
    rows = tab.locator(f"{selector} tbody tr").all()
    return [row.locator("td").all_text_contents() for row in rows]


def figure(written: str) -> float:
    return float(written.replace(",", ""))


def ffn_rows(report, side):
    return [row for row in report[side]["inspect"]["sites"] if row["site"] == "ffn_output"]


def test_it_is_one_file_without_markup_of_others():
    report = retrofit(command=f"quietformer retrofit {EVIL}", sentence=EVIL)
    made = as_report(report)
    written = page(made)
    assert EVIL not in written
    assert written.count("</script>") == 2
    assert not re.search(r"https?://", written.replace("http://www.w3.org/2000/svg", ""))
    data = written.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(json.dumps(slim(json.loads(made.to_json()))))


def test_a_kind_without_a_page_of_its_own_gets_its_words_escaped():
    report = ConvertReport(
        model=EVIL, out=EVIL, class_name="Bert", attention=AttentionSpec(), patch_norm=False, seed=0, layers=2,
        parameters_before=10, parameters_added=1, bytes=100,
    )  # fmt: skip
    assert EVIL not in page(as_report(report))
    assert html.escape(EVIL) in page(as_report(report))


@in_browser
def test_the_verdict_is_told_and_its_rows_say_what_got_better(opened):
    report = retrofit()
    report["rows"] += [
        {"what": "floating point", "before": 1.0, "after": 0.9, "better": "higher"},
        {"what": "parameters", "before": 100, "after": 100, "better": "lower"},
        {"what": "nothing known", "before": None, "after": 3.0, "better": "lower"},
        {"what": "INT8, ms", "before": 7.5, "after": 8.0, "better": "lower", "noise": 0.1},
        {"what": "INT8, ms, longer", "before": 7.5, "after": 9.0, "better": "lower", "noise": 0.1},
    ]
    tab, problems = opened(report)
    assert text(tab, "#verdict strong") == "INT8 now keeps a-model."
    assert [code.text_content() for code in tab.locator("#verdict strong code").all()] == ["a-model"]
    assert cells(tab, "#verdict") == [
        ["real INT8: cosine", "0.2500", "0.7500", "✓ 3 × more, better"],
        ["largest value", "190", "10", "✓ 19 × less, better"],
        ["floating point", "1.0000", "0.9000", "✗ −0.1000, worse"],
        ["parameters", "100", "100", "same"],
        ["nothing known", "–", "3", "–"],
        ["INT8, ms", "7.5", "8", "about the same"],
        ["INT8, ms, longer", "7.5", "9", "✗ +1.5, worse"],
    ]
    assert "quiet-model" in tab.get_attribute("#verdict", "class")
    assert problems == []


@in_browser
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "quiet-model"),
        ({"after": (0.9, 0.2)}, "worrying"),
        ({"before": (4.0, 900.0), "after": (4.1, 4.2), "measure": "perplexity", "better": "lower"}, "quiet-model"),
        ({"before": (4.0, 5.0), "after": (4.1, 6.0), "measure": "perplexity", "better": "lower"}, "worrying"),
    ],
    ids=["better", "worse", "perplexity-better", "perplexity-worse"],
)
def test_the_colour_of_the_verdict_follows_int8(opened, given, kind):
    tab, _ = opened(retrofit(**given))
    assert kind in tab.get_attribute("#verdict", "class").split()


@in_browser
def test_the_table_has_the_figures_of_every_layer(opened):
    report = retrofit()
    tab, problems = opened(report)
    tab.click("#outliers summary")
    found = cells(tab, "#layer-table")
    before, after = ffn_rows(report, "before"), ffn_rows(report, "after")
    assert len(found) == len(before)
    for row, first, second in zip(found, before, after, strict=True):
        expected = [
            first["layer"],
            first["infinity_norm"],
            second["infinity_norm"],
            first["kurtosis"],
            second["kurtosis"],
        ]
        assert [figure(cell) for cell in row] == pytest.approx(expected, rel=1e-5)
    assert problems == []


@in_browser
@pytest.mark.parametrize(("chart", "field"), [("#norms", "infinity_norm"), ("#kurtoses", "kurtosis")])
def test_marks_stand_where_the_logarithm_puts_them(opened, chart, field):
    report = retrofit()
    tab, _ = opened(report)
    heights, logs = [], []
    for side in ("before", "after"):
        marks = tab.locator(f"{chart} circle.{side}").all()
        heights += [float(mark.get_attribute("cy")) for mark in marks]
        logs += [math.log(row[field]) for row in ffn_rows(report, side)]
    assert len(heights) == len(logs) == 4
    low, high = logs.index(min(logs)), logs.index(max(logs))
    slope = (heights[high] - heights[low]) / (logs[high] - logs[low])
    assert slope < 0
    assert heights == pytest.approx([heights[low] + slope * (value - logs[low]) for value in logs], abs=0.01)


@in_browser
def test_a_layer_is_read_by_pointer_and_by_keyboard(opened):
    report = retrofit()
    tab, problems = opened(report)
    layers = tab.locator("#norms g")
    layers.nth(1).hover()
    said = text(tab, "#layer-readout")
    norms = [ffn_rows(report, side)[1]["infinity_norm"] for side in ("before", "after")]
    assert said.startswith("Layer 1: infinity norm")
    assert [figure(found) for found in re.findall(r"([\d.,]+) (?:before|after)", said)] == pytest.approx(
        norms, rel=1e-5
    )
    tab.locator("#kurtoses g").first.focus()
    assert text(tab, "#layer-readout").startswith("Layer 0: kurtosis")
    tab.keyboard.press("ArrowRight")
    assert text(tab, "#layer-readout").startswith("Layer 1: kurtosis")
    assert layers.nth(1).get_attribute("aria-label").capitalize() == said
    assert problems == []


@in_browser
def test_the_steps_left_are_those_of_the_worst_layer(opened):
    report = retrofit()
    tab, _ = opened(report)
    for side in ("before", "after"):
        steps = 2 ** min(row["int8_bits_left"] for row in ffn_rows(report, side))
        assert float(text(tab, f".steps.{side} b").split()[0]) == pytest.approx(steps, rel=0.05)
        assert tab.locator(f".steps.{side} rect.left").count() == math.ceil(steps)


@in_browser
def test_bars_are_as_long_as_their_values(opened):
    tab, problems = opened(retrofit())
    lengths = {}
    for side in ("before", "after"):
        found = tab.locator(f"#bars i.{side}").all()
        tracks = tab.locator("#bars .track").first.bounding_box()["width"]
        lengths[side] = [bar.bounding_box()["width"] / tracks for bar in found]
    # fp32, simulated per tensor and per channel, real per channel; real per tensor was not measured.
    assert lengths["before"] == pytest.approx([1.0, 0.25, 0.25, 0.25], abs=0.01)
    assert lengths["after"] == pytest.approx([0.9, 0.75, 0.75, 0.75], abs=0.01)
    titles = tab.locator("#bars th[scope=rowgroup]").all_text_contents()
    assert titles == [
        "fp32", "simulated W8A8, per-tensor weights", "simulated W8A8, per-channel weights",
        "real INT8, per-channel weights",
    ]  # fmt: skip
    assert "1.50 × as fast" in text(tab, "#savings-table")
    assert "23.4 MB in INT8, 91 MB in fp32" in text(tab, "#size").replace("91.0", "91")
    assert problems == []


@in_browser
def test_perplexities_are_drawn_by_their_logarithm_and_a_broken_one_is_called_so(opened):
    report = retrofit((4.0, None), (4.0, 16.0), "perplexity", "lower")
    tab, problems = opened(report)
    track = tab.locator("#bars .track").first.bounding_box()["width"]
    lengths = [bar.bounding_box()["width"] / track for bar in tab.locator("#bars i.after").all()]
    assert lengths == pytest.approx([0.5, 1.0, 1.0, 1.0], abs=0.01)  # log 4 is half of log 16
    assert tab.locator("#bars i.none").count() == 3
    assert tab.locator("#bars .bad").all_text_contents() == ["broken"] * 3
    assert "logarithmic" in text(tab, "#bar-scale")
    assert not re.search(r"NaN|null|undefined|Infinity", tab.inner_text("body"))
    assert problems == []


@in_browser
def test_another_measure_can_be_chosen(opened):
    report = retrofit()
    for side, value in (("before", 0.125), ("after", 0.5)):
        report[side]["real"]["per_channel"]["neighbour_agreement"] = value
    tab, _ = opened(report)
    assert tab.input_value("#measure") == "cosine"
    tab.select_option("#measure", "neighbour_agreement")
    assert tab.locator("#bars .figure").all_text_contents() == ["0.1250", "0.5000"]
    assert "nearest" in text(tab, "#measure-meaning")


def pixels(tab) -> list[str]:
    return tab.evaluate("[...document.querySelectorAll('#pictures canvas')].map(c => c.toDataURL())")


@in_browser
def test_layer_and_head_change_both_patterns_and_only_the_gated_side_has_a_gate(opened):
    tab, problems = opened(retrofit())
    parts = tab.locator("#pictures > div")
    assert [part.locator("canvas").count() for part in parts.all()] == [1, 2]
    assert parts.nth(1).locator(".gate canvas").count() == 1
    seen = set()
    for layer in "01":
        for head in "0123":
            tab.select_option("#layer", layer)
            tab.select_option("#head", head)
            seen.update(pixels(tab))
    assert len(seen) >= 16  # two patterns for each of eight heads
    tab.click("#head-maps > div:nth-child(2) tr:nth-child(2) td:nth-child(3) button")
    assert (tab.input_value("#layer"), tab.input_value("#head")) == ("0", "1")
    assert tab.locator("#head-maps .chosen").count() == 2
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    assert (tab.input_value("#layer"), tab.input_value("#head")) == ("0", "2")
    tab.select_option("#head-measure", "gate")
    assert tab.locator("#head-maps > div:visible").count() == 1
    assert problems == []


@in_browser
def test_words_and_pointer_give_the_weights_of_the_pattern(opened):
    report = retrofit()
    tab, problems = opened(report)
    tab.select_option("#layer", "1")
    tab.select_option("#head", "2")
    inspected = {side: report[side]["inspect"] for side in ("before", "after")}
    tokens = inspected["before"]["pictures"]["sequences"][0]["tokens"]
    weights = {}
    for side, found in inspected.items():
        entry = next(e for e in found["pictures"]["attention"] if e["sequence"] == 0 and e["layer"] == 1)
        weights[side] = unpack(PackedMatrix(**entry["heads"][2]["P"]))
        columns = weights[side].sum(0)
        by_token: dict[str, float] = {}
        for token, weight in zip(tokens, columns, strict=True):
            by_token[token] = by_token.get(token, 0.0) + weight
        place = max(by_token, key=lambda token: by_token[token])
        nth = 1 if side == "before" else 2
        share = round(100 * by_token[place] / columns.sum())
        assert f"{share}% of its weight goes to {place}." in text(tab, f"#pictures > div:nth-child({nth}) p")
    gate = next(row for row in inspected["after"]["heads"] if row["layer"] == 1)["gate"][2]
    assert f"open to {gate:.2g}" in text(tab, "#pictures > div:nth-child(2) p")

    gates = [found for row in inspected["after"]["heads"] for found in row["gate"]]
    told = re.search(r"open to ([\d.]+) on average, from ([\d.]+) to (\d+\.?\d*)", text(tab, "#why"))
    expected = [sum(gates) / len(gates), min(gates), max(gates)]
    assert [float(found) for found in told.groups()] == pytest.approx(expected, rel=0.06)

    canvas = tab.locator("#pictures > div:nth-child(1) canvas")
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    said = tab.text_content("#hover")
    assert said.startswith(f"{tokens[2]} → {tokens[1]}: ")
    shown = [float(found) for found in re.findall(r"([\d.]+) (?:before|after)", said)]
    assert shown == pytest.approx([weights[side][2, 1] for side in ("before", "after")], rel=0.01)
    canvas.hover(position={"x": 3, "y": 3})
    assert tab.text_content("#hover").startswith(f"{tokens[0]} → {tokens[0]}: ")
    assert problems == []


@in_browser
@pytest.mark.parametrize(
    ("name", "variant"), [("bert", "clipped-gamma"), ("opt", "gate-linear"), ("vit", "gate-linear")]
)
def test_other_models_and_variants_are_drawn(opened, name, variant):
    tab, problems = opened(retrofit(name=name, variant=variant))
    assert tab.locator("#norms circle").count() == 4
    assert len(pixels(tab)) == (3 if "gate" in variant else 2)
    assert ("patch" in text(tab, "#why")) == (name == "vit")
    assert ("gate" in text(tab, "#why")) == ("gate" in variant)
    assert problems == []


@in_browser
def test_the_run_is_drawn_and_read_step_by_step(opened):
    tab, problems = opened(retrofit())
    assert "30 steps in 2.5 minutes" in text(tab, "#run-summary")
    assert tab.locator("#loss circle").count() == 4
    assert tab.locator("#evaluated circle").count() == 4
    tab.locator("#loss svg").focus()
    assert text(tab, "#step-readout") == "Step 30: loss 0.333333"
    tab.keyboard.press("ArrowLeft")
    assert text(tab, "#step-readout") == "Step 20: loss 0.5"
    box = tab.locator("#evaluated svg").bounding_box()
    tab.locator("#evaluated svg").hover(position={"x": box["width"] - 12, "y": 50})
    assert text(tab, "#step-readout") == "Step 30: INT8 0.8, fp32 0.9"
    tab.click("#run summary")
    assert cells(tab, "#log-table")[0] == ["1", "10", "0.0001", "–", "–"]
    assert len(cells(tab, "#log-table")) == 6
    assert problems == []


@in_browser
def test_what_was_done_is_written_down(opened):
    tab, _ = opened(retrofit())
    lines = tab.locator("#recipe div").all()
    assert [line.locator("dt, dd").all_text_contents() for line in lines] == [
        ["training.steps", "30"], ["training.seeds", "0, 1"], ["penalty.past", "4"], ["penalty.site", "–"],
    ]  # fmt: skip
    assert "softmax before, softmax() + linear() after" in text(tab, "#done-summary")
    assert "source prose" in text(tab, "#given")
    assert text(tab, "#given code") == "quietformer retrofit a-model --out quiet"
    assert text(tab, "#footer") == "torch 2.13"


@in_browser
def test_a_model_left_alone_is_said_to_be(opened):
    report = retrofit(after=None, sentence="There is nothing to mend.")
    tab, problems = opened(report)
    assert "There is nothing to mend. The model was left alone." in text(tab, "#verdict")
    assert cells(tab, "#verdict")[0] == ["real INT8: cosine", "0.2500"]
    assert tab.locator("circle.after, i.after, .steps.after").count() == 0
    assert tab.locator("#norms circle.before").count() == 2
    assert len(pixels(tab)) == 1
    assert not tab.is_visible("#run")
    assert not re.search(r"\b(before|after): |NaN|null|undefined", tab.inner_text("body"))
    assert "Nothing was changed." in text(tab, "#done-summary")
    assert problems == []


@in_browser
def test_missing_parts_are_left_out(opened):
    report = retrofit(log=[{"step": 5, "loss": 0.5}], recipe={}, data={}, versions={}, rows=[])
    for side in ("before", "after"):
        report[side]["real"] = {}
        report[side]["inspect"]["heads"] = []
        report[side]["inspect"]["pictures"]["attention"] = []
        for row in report[side]["inspect"]["sites"]:
            row["kurtosis"] = None
    tab, problems = opened(report)
    assert not tab.is_visible("#attention")
    assert not tab.is_visible("#savings")
    assert not tab.is_visible("#evaluated-part")
    assert tab.locator("#loss circle").count() == 1
    assert text(tab, "#kurtoses") == "Not measured."
    assert tab.locator("#bars th[scope=rowgroup]").count() == 3
    assert not re.search(r"NaN|null|undefined|Infinity", tab.inner_text("body"))
    assert problems == []


@in_browser
def test_names_appear_as_text(opened):
    report = retrofit(command=EVIL, versions={EVIL: EVIL}, recipe={EVIL: [EVIL, {EVIL: EVIL}]}, data={"source": EVIL})
    report |= {"attention": EVIL, "sentence": EVIL}
    report["rows"][0]["what"] = report["model"]["name"] = report["model"]["attention"] = EVIL
    for side in ("before", "after"):
        inspected = report[side]["inspect"]
        sequence = inspected["pictures"]["sequences"][0]
        sequence["tokens"] = [EVIL] * len(sequence["tokens"])
        inspected["verdict"]["claims"] = [EVIL]
    tab, problems = opened(report)
    assert tab.text_content("#title") == EVIL
    for selector in (
        "#verdict strong",
        "#verdict tbody",
        "#claims",
        "#pictures",
        "#recipe",
        "#given",
        "#footer",
    ):
        assert EVIL in tab.text_content(selector)
    tab.locator("#pictures canvas").first.hover()
    assert EVIL in tab.text_content("#hover")
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert problems == []


@on_every_screen
def test_it_fits_a_phone_and_follows_the_colour_scheme(opened, scheme, width):
    report = retrofit(command=LONG, recipe={LONG: LONG}, sentence=LONG, attention=LONG)
    report["model"]["name"] = report["rows"][0]["what"] = LONG
    tab, problems = opened(report, viewport={"width": width, "height": 800}, color_scheme=scheme)
    for summary in tab.locator("summary").all():
        summary.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    drawn = pixels(tab)
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.dataset.theme") != scheme
    assert pixels(tab) != drawn
    # Letters of the charts are not shrunk with them.
    assert tab.evaluate("document.querySelector('#norms svg').getScreenCTM().a") == pytest.approx(1, abs=0.05)
    assert problems == []


@in_browser
def test_charts_follow_the_width_of_the_window(opened):
    tab, _ = opened(retrofit(), viewport={"width": 1200, "height": 800})
    tab.set_viewport_size({"width": 390, "height": 800})
    wait_until(tab, "document.querySelector('#loss svg').viewBox.baseVal.width < 390")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


@in_browser
def test_every_control_has_a_name(opened):
    tab, _ = opened(retrofit())
    unnamed = """[...document.querySelectorAll("button, select, svg, canvas")].filter(e => !(e.getAttribute("aria-label")
      || e.getAttribute("aria-hidden") || e.textContent.trim() && e.tagName === "BUTTON" || e.closest("label")))"""
    assert tab.evaluate(f"{unnamed}.map(e => e.outerHTML)") == []
