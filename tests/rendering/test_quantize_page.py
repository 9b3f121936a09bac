"""The page of `quantize` in a real browser: what it costs, who is to blame, and everybody's names as text."""

from __future__ import annotations

import json
import re

import pytest

from quietformer.rendering.page import page
from quietformer.results.quality import SCALES
from tests.rendering.as_report import as_report
from tests.rendering.marks import in_browser, on_every_screen
from tests.rendering.tabs import text

EVIL = "</script><img src=x onerror=alert(1)>\"'`/*SCRIPT*/"
LONG = "very_long_name_" * 20


def row(site, short, role="activation", sqnr=30.0, only=None, without=None):
    grid = "s8" if role == "weight" else "u8"
    return {
        "site": site, "short": short, "role": role, "grid": grid, "lo": -1.5, "hi": 163.06, "sqnr_db": sqnr,
        "only": only, "without": without,
    }  # fmt: skip


def rows():
    """Four layers of eight tensors, the noisiest first, and two tensors in no layer."""
    kinds = ("ffn_output", "ffn_output.weight", "query", "key", "value", "scores", "context")
    found = [row("embeddings:add_0", "embeddings:add_0", sqnr=25.0), row(LONG, LONG, "weight", sqnr=None)]
    for layer in range(4):
        for place, kind in enumerate(kinds):
            module, weight = f"encoder.layer.{layer}.{kind.removesuffix('.weight')}", kind.endswith(".weight")
            tap, role = ("weight", "weight") if weight else ("output", "activation")
            found.append(row(f"{module}:{tap}", f"{layer}.{kind}", role, sqnr=10.0 + 7 * place + layer))
        # As BERT's first FFN weight, which has no short name.
        name = f"encoder.layer.{layer}.intermediate.dense:weight"
        found.append(row(name, name, "weight", sqnr=38.0 + layer / 10))
    return sorted(found, key=lambda one: 1e9 if one["sqnr_db"] is None else one["sqnr_db"])


def figures(before=1.0, seeds=(0.84, 0.82), measure="cosine", better="higher", found=None, **more):
    finite = None not in seeds
    mean = sum(seeds) / len(seeds) if finite else None
    found = rows() if found is None else found
    spec = {
        "weight_bits": 8, "activation_bits": 8, "weights": {"kind": "minmax"},
        "activations": {"kind": "running_minmax", "momentum": 0.9}, "per_channel": False, "weight_symmetric": True,
        "activation_symmetric": False, "head": False, "gate": False, "rules": ["*.key=16"],
    }  # fmt: skip
    left = [{"site": f"encoder.layer.{layer}.act:output", "why": "quantized after it"} for layer in range(4)]
    sites = [{key: one[key] for key in ("site", "short", "role", "grid")} for one in found]
    return {
        "version": 2, "kind": "quantize", "label": "W8A8", "spec": spec, "task": "embedding",
        "model": {"name": "a-model", "class_name": "BertModel", "parameters": 22713216, "attention": "softmax()"},
        "plan": {"spec": spec, "weights": 9, "activations": 25, "sites": sites,
                 "left": [*left, {"site": "classifier:weight", "why": "the head"}]},
        "primary": measure, "better": better, "scale": SCALES[better], "fp32": {measure: before},
        "runs": [{"seed": seed, "metrics": {measure: value}} for seed, value in enumerate(seeds)],
        "quantized": {measure: {"mean": mean, "std": 0.0141 if finite else None}},
        "search": [], "data": {"source": "built-in text", "length": 128, "seed": 0, "calibration_sequences": 128,
                               "evaluation_sequences": 64, "batch_size": 8},
        "sensitivity": {"measure": None, "everything": None, "nothing": None, "rows": found},
    } | more  # fmt: skip


def measured(measure="cosine", nothing=1.0, everything=0.83, found=None):
    found = found or [
        row("m.1.out:output", "1.ffn_output", sqnr=20.0, only=0.90, without=0.97),
        row("m.0.out:weight", "0.ffn_output.weight", "weight", sqnr=8.0, only=0.98, without=0.84),
        row("m.0.query:output", "0.query", sqnr=39.0, only=1.0, without=0.83),
    ]
    return {"measure": measure, "sequences": 16, "everything": everything, "nothing": nothing, "rows": found}


def ranked(tab) -> list[str]:
    return tab.locator("#sites .site").all_text_contents()


def test_it_is_one_file_without_markup_of_others():
    report = figures(command=f"quietformer quantize {EVIL}")
    made = as_report(report)
    written = page(made)
    assert EVIL not in written
    assert written.count("</script>") == 2
    assert not re.search(r"https?://", written)
    data = written.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(made.to_json())


@in_browser
@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({}, "W8A8 breaks this model: cosine 1.0000 → 0.8300 ± 0.0141."),
        ({"seeds": (0.95,)}, "W8A8 costs this model quality: cosine 1.0000 → 0.9500."),
        ({"seeds": (0.9995,)}, "W8A8 costs this model next to nothing: cosine 1.0000 → 0.9995."),
        (
            {"before": 4.49, "seeds": (1294.5,), "measure": "perplexity", "better": "lower"},
            "W8A8 breaks this model: perplexity 4.49 → 1,294.50.",
        ),
        (
            {"before": 4.4, "seeds": (4.52,), "measure": "perplexity", "better": "lower"},
            "W8A8 costs this model a little: perplexity 4.40 → 4.52.",
        ),
        (
            {"before": 4.49, "seeds": (5.0, None), "measure": "perplexity", "better": "lower"},
            "W8A8 breaks this model: perplexity 4.49 → broken.",
        ),
        (
            {"before": None, "seeds": (None,), "measure": "perplexity", "better": "lower"},
            "There is nothing to compare with: the model does not work in fp32: perplexity broken → broken.",
        ),
    ],
    ids=["broken", "quality", "nothing", "perplexity", "little", "a-seed", "float"],
)
def test_the_headline_says_what_it_costs(opened, report, said):
    tab, problems = opened(figures(**report))
    assert text(tab, "#verdict strong") == said
    assert "NaN" not in tab.inner_text("body")
    assert problems == []


@in_browser
def test_a_reader_finds_every_figure(opened):
    search = [
        {"activations": "minmax", "metrics": {"cosine": 0.81}},
        {"activations": "mse", "metrics": {"cosine": 0.9}},
    ]
    tab, problems = opened(figures(search=search, command="quietformer quantize x", versions={"torch": "2.9"}))
    assert text(tab, "#measure-table tbody tr").endswith("1.0000 0.8300 ± 0.0141 0.8400 0.8200")
    assert text(tab, "#search-table .chosen") == "mse 0.9000 chosen"
    assert "quantized after it (4)" in text(tab, "#left")
    assert "encoder.layer.*.act:output × 4" in text(tab, "#left")
    tab.click("#left summary")
    assert "encoder.layer.3.act:output" in text(tab, "#left")
    assert "classifier:weight" in text(tab, "#left")
    footer = text(tab, "#footer")
    assert all(
        part in footer for part in ("running_minmax(momentum=0.9)", "rules *.key=16", "torch 2.9", "built-in text")
    )
    assert problems == []


@in_browser
def test_the_ranking_is_in_the_order_given_and_shows_all_when_asked(opened):
    tab, problems = opened(figures())
    given = [one["short"] for one in rows()]
    assert ranked(tab) == given[:20]
    tab.get_by_role("button", name="show all 34").click()
    assert ranked(tab) == given
    tab.get_by_role("button", name="show the first 20").click()
    assert ranked(tab) == given[:20]
    tab.locator("#sites .site").first.click()
    detail = text(tab, "#sites .detail")
    assert "encoder.layer.0.ffn_output:output · activation · layer 0 · 8 bits, asymmetric" in detail
    assert "noise of 31.6% of the signal" in detail
    tab.locator("#sites .site").first.click()
    assert tab.locator("#sites .detail").count() == 0
    assert problems == []


def annihilated(short="0.ffn_output.input"):
    return {
        "site": "encoder.layer.0.output.dense:input", "short": short, "zeroed": 0.993, "lost_by_token": 0.97,
        "lost_by_channel": 0.1, "token_spread": 985.0, "advice": "--granularity token",
        "remedies": [{"name": "per token", "zeroed": 0.004, "lost_by_token": 0.0, "lost_by_channel": 0.0}],
    }  # fmt: skip


@in_browser
def test_annihilated_tensors_are_shown_with_every_remedy_that_was_measured(opened):
    tab, problems = opened(figures(annihilated=[annihilated(), annihilated(EVIL)]))
    rows = tab.locator("#annihilated-table tbody tr").all_text_contents()
    assert rows[0] == "0.ffn_output.input99.3%985–0.4%--granularity token"
    assert rows[1].startswith(EVIL)
    assert "almost nothing of 2 tensors" in text(tab, "#verdict")
    assert problems == []


@in_browser
def test_a_model_without_annihilated_tensors_does_not_speak_of_them(opened):
    tab, problems = opened(figures(annihilated=[]))
    assert not tab.is_visible("#annihilated")
    assert "almost nothing of" not in text(tab, "#verdict")
    assert problems == []


@in_browser
def test_it_filters_and_sorts(opened):
    tab, problems = opened(figures())
    tab.select_option("#role", "weight")
    assert set(tab.locator("#sites td:last-child").all_text_contents()) == {"weight"}
    tab.select_option("#layer", "2")
    # The one without a short name lies in the module of layer 2.
    assert ranked(tab) == ["2.ffn_output.weight", "encoder.layer.2.intermediate.dense:weight"]
    tab.fill("#text", "INTERMEDIATE")
    assert ranked(tab) == ["encoder.layer.2.intermediate.dense:weight"]
    assert tab.text_content("#shown") == "1 of 1 that match"
    tab.fill("#text", "nowhere")
    assert text(tab, "#sites tbody") == "No tensor matches."
    for selector, value in (("#role", ""), ("#layer", "null")):
        tab.select_option(selector, value)
    tab.fill("#text", "")
    assert ranked(tab) == ["embeddings:add_0", LONG]
    tab.select_option("#layer", "")
    sqnr = tab.get_by_role("button", name="SQNR dB")
    sqnr.click()
    assert ranked(tab)[0] == "0.ffn_output"
    sqnr.click()
    assert ranked(tab)[0] == "3.context"
    assert tab.get_attribute("#sites th:has-text('SQNR')", "aria-sort") == "descending"
    tab.get_by_role("button", name="rank").click()
    assert ranked(tab) == [one["short"] for one in rows()][:20]
    assert problems == []


@in_browser
def test_measured_harm_is_told_and_drawn(opened):
    tab, problems = opened(figures(sensitivity=measured()))
    verdict = text(tab, "#verdict")
    assert "1.ffn_output alone takes cosine from 1.0000 to 0.9000." in verdict
    assert "Sparing 1.ffn_output alone gets back 82.4% of what is lost." in verdict
    assert "--keep '*.ffn_output=16'" in verdict
    assert "0.9000 82.4% back 0.9700 20.0" in text(tab, "#sites tbody tr:first-child")
    widths = [bar.bounding_box()["width"] for bar in tab.locator("#sites .bar").all()]
    assert widths[1] / widths[0] == pytest.approx(0.2, abs=0.01)  # 2 % of the cosine gone against 10 %
    assert tab.locator("#map .cell").all_text_contents() == ["10%", "0", "2.0%"]
    tab.select_option("#figure", "sqnr")
    assert tab.locator("#map .cell").all_text_contents() == ["20", "39", "8"]
    assert problems == []


@in_browser
def test_no_tensor_is_blamed_for_what_all_do_together(opened):
    found = [row("m.0.query:output", "0.query", only=0.9999, without=0.83)]
    tab, _ = opened(figures(sensitivity=measured(found=found)))
    assert "No tensor does that alone: the harm adds up." in text(tab, "#verdict")


@in_browser
def test_what_has_no_number_is_called_broken(opened):
    found = [
        row("m.1.out:output", "1.ffn_output", only=None, without=4.6),
        row("m.0.out:output", "0.ffn_output", only=9.0, without=None),
    ]
    harm = measured("perplexity", nothing=4.5, everything=None, found=found)
    report = figures(4.5, (None, None, 80.0), "perplexity", "lower", sensitivity=harm)
    tab, problems = opened(report)
    assert "2 of 3 seeds broke it." in text(tab, "#verdict")
    assert "Sparing 1.ffn_output alone mends it." in text(tab, "#verdict")
    assert text(tab, "#measure-table tbody tr").endswith("4.50 broken broken broken 80.00")
    assert "broken mends it 4.60" in text(tab, "#sites tbody tr:nth-child(1)")
    assert "9.00 broken" in text(tab, "#sites tbody tr:nth-child(2)")
    assert tab.locator("#map .cell").all_text_contents() == ["100%", "broken"]
    assert not re.search(r"NaN|null|undefined|Infinity", tab.inner_text("body"))
    assert problems == []


@in_browser
def test_the_map_is_read_with_the_keyboard_and_leads_to_the_ranking(opened):
    tab, problems = opened(figures())
    cells = tab.locator("#map .cell")
    assert cells.count() == 34
    assert tab.locator("#map .cell[tabindex='0']").count() == 3  # one stop a map, one for tensors in no layer
    first = tab.get_by_role("button", name=re.compile(r"^0\.ffn_output: "))
    first.focus()
    assert "SQNR 10.0 dB" in tab.text_content("#readout")
    tab.keyboard.press("ArrowRight")
    assert tab.text_content("#readout").startswith("1.ffn_output: encoder.layer.1.ffn_output:output")
    tab.keyboard.press("ArrowDown")
    assert tab.text_content("#readout").startswith("1.query: ")
    tab.keyboard.press("Enter")
    assert ranked(tab) == ["1.query"]
    assert (tab.input_value("#layer"), tab.input_value("#role")) == ("1", "activation")
    tab.get_by_role("button", name="clear").click()
    assert len(ranked(tab)) == 20
    assert not tab.is_visible("#clear")
    assert problems == []


@in_browser
def test_names_appear_as_text(opened):
    found = [row(f"m.0.{EVIL}:output", f"0.{EVIL}", sqnr=9.0), row(EVIL, EVIL, "weight", sqnr=12.0)]
    report = figures(found=found, command=EVIL, versions={EVIL: EVIL})
    report["model"]["name"] = report["data"]["source"] = EVIL
    report["plan"]["left"] = [{"site": EVIL, "why": EVIL}]
    report["search"] = [{"activations": EVIL, "metrics": {"cosine": 0.9}}]
    tab, problems = opened(report)
    assert tab.text_content("#title") == EVIL
    assert ranked(tab) == [f"0.{EVIL}", EVIL]
    for selector in ("#verdict", "#left", "#search", "#footer", "#maps"):
        assert EVIL in tab.text_content(selector)
    tab.locator("#sites .site").last.click()
    assert EVIL in tab.text_content("#sites .detail")
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert problems == []


@on_every_screen
def test_it_fits_a_phone_and_follows_the_colour_scheme(opened, scheme, width):
    report = figures(command=LONG)
    report["model"]["name"] = LONG
    report["plan"]["left"].append({"site": LONG, "why": LONG})
    tab, problems = opened(report, viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab.click("#all")
    tab.locator("#sites .site").last.click()
    assert LONG in tab.text_content("#sites .detail")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.dataset.theme") != scheme
    assert problems == []


@in_browser
def test_every_control_has_a_name(opened):
    tab, _ = opened(figures(sensitivity=measured()))
    unnamed = """[...document.querySelectorAll("button, select, input")].filter(e => !e.closest("[hidden]") && !e.hidden
      && !(e.getAttribute("aria-label") || e.textContent.trim() && e.tagName === "BUTTON" || e.closest("label")))"""
    assert tab.evaluate(f"{unnamed}.map(e => e.outerHTML)") == []
