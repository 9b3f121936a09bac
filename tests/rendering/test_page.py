"""The page in a real browser: pictures change, nothing is fetched, tokens stay text."""

from __future__ import annotations

import json

import pytest
import torch

import quietformer as qf
from quietformer.analysis.outliers import TokenNames
from quietformer.rendering.card import card_fragment
from quietformer.rendering.page import page
from quietformer.rendering.plots import draw_plots, unpack
from quietformer.results.inspect import InspectReport, PackedMatrix
from tests.rendering.as_report import as_report
from tests.tiny_models import VARIANTS, build, inputs

EVIL = "</script><img src=x onerror=alert(1)>"


def figures(name="bert", variant=None):
    model = build(name)
    if variant:
        qf.apply_attention_(model, VARIANTS[variant])
    report = qf.inspect_model(
        model, [inputs(name)], names=TokenNames(lambda token: EVIL if token % 2 else f"t{token}"), name=EVIL
    ).model_dump()
    return report | {"interventions": [], "growth": [], "command": f"quietformer inspect {EVIL}"}


def test_no_markup_of_others_reaches_the_page():
    text = page(as_report(figures()))
    assert EVIL not in text
    assert text.count("</script>") == 2
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_stored_pictures_are_the_matrices():
    model, given = build("bert"), inputs("bert")
    report = qf.inspect_model(model, [given]).model_dump()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**given, output_attentions=True).attentions
    for entry in report["pictures"]["attention"]:
        for head, kept in enumerate(entry["heads"]):
            expected = attentions[entry["layer"]][entry["sequence"], head]
            torch.testing.assert_close(
                torch.from_numpy(unpack(PackedMatrix(**kept["P"]))).float(), expected, rtol=0, atol=0.003
            )


@pytest.mark.parametrize(
    ("name", "variant"), [("bert", None), ("bert", "clipped-gamma"), ("bert", "gate-linear"), ("vit", None)]
)
def test_figures_for_a_paper(name, variant, tmp_path):
    drawn = draw_plots(InspectReport.from_fields(figures(name, variant)), tmp_path / "figures")
    assert {path.suffix for path in drawn} == {".png", ".svg"}
    assert ("patches.png" in {path.name for path in drawn}) == (name == "vit")
    assert all(path.stat().st_size > 1000 for path in drawn)
    assert EVIL not in (tmp_path / "figures" / "attention.svg").read_text()


def test_the_card_carries_the_verdict():
    report = figures()
    card = card_fragment(InspectReport.from_fields(report))
    assert report["verdict"]["sentence"] in card
    assert f"{report['headline']['infinity_norm']:.2f}" in card


@pytest.fixture
def opened(open_tab, tmp_path):
    def open_page(report, **options):
        as_report(report).to_html(tmp_path / "page.html")
        tab, problems, requests = open_tab(tmp_path / "page.html", **options)
        tab.wait_for_function("document.querySelectorAll('#pictures canvas').length > 0")
        return tab, problems, requests

    return open_page


def pixels(tab) -> str:
    return tab.evaluate("[...document.querySelectorAll('#pictures canvas')].map(c => c.toDataURL()).join()")


@pytest.mark.xdist_group("browser")
def test_selectors_change_the_pictures_and_nothing_leaves_the_page(opened):
    tab, problems, requests = opened(figures(variant="gate-linear"))
    seen = {pixels(tab)}
    for selector, value in (("#layer", "0"), ("#layer", "1"), ("#head", "0"), ("#head", "3"), ("#sequence", "1")):
        tab.select_option(selector, value)
        seen.add(pixels(tab))
    assert len(seen) >= 5
    tab.click("#head-map tr:nth-child(2) td:nth-child(3) button")
    assert (tab.input_value("#layer"), tab.input_value("#head")) == ("0", "1")
    tab.select_option("#measure", "sink")
    assert "most attended" in tab.text_content("#measure-meaning")
    tab.hover("#pictures figure:nth-child(2) canvas", position={"x": 5, "y": 5})
    assert "→" in tab.text_content("#hover")
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.xdist_group("browser")
def test_tokens_appear_as_text(opened):
    report = figures()
    tab, problems, _ = opened(report)
    assert tab.text_content("#title") == EVIL
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert any(EVIL in text for text in tab.locator("#sequence option").all_text_contents())
    assert problems == []


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_a_phone_and_follows_the_colour_scheme(opened, scheme, width):
    report = figures() | {"model": figures()["model"] | {"name": "a-model"}}
    tab, _, _ = opened(report, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.documentElement.dataset.theme") == scheme
    tab.click("#theme")
    assert tab.evaluate("document.documentElement.dataset.theme") != scheme


@pytest.mark.xdist_group("browser")
def test_images_show_their_patches(opened):
    tab, problems, _ = opened(figures("vit"))
    assert tab.evaluate("document.querySelectorAll('#patch-maps canvas').length") == 2
    assert tab.is_visible("#patches")
    assert problems == []


def test_the_page_holds_all_figures():
    report = figures()
    text = page(as_report(report))
    data = text.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data) == json.loads(json.dumps(report))
