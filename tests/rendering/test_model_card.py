"""The card of an exported model: metadata that the hub's own library reads, and text that cannot break out of it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from quietformer.rendering.model_card import model_card
from quietformer.results.base import Report
from quietformer.results.export import CardFields, ShippedTarget

SAVED = Path(__file__).parent.parent / "results" / "version_1" / "export_bert.json"
OURS = ShippedTarget(
    name="quietformer", install="quietformer[onnx]", language="python", code="model = FOLDER", note="Read."
)
THEIRS = ShippedTarget(name="a-client", install="a", language="js", code="load(FOLDER)")


@pytest.fixture
def report():
    found = Report.read(SAVED)
    return found.model_copy(update={"export": found.export.model_copy(update={"targets": [THEIRS, OURS]})})


def test_the_card_of_a_report_of_an_earlier_release_reads(report):
    card = ModelCard(model_card(report))
    assert card.data.base_model is None
    assert "int8" in card.data.tags
    assert report.command in card.text


def test_metadata_is_what_the_hub_reads(report):
    fields = CardFields(base_model="me/model", license="mit", language=["en", "de"], pipeline_tag="text-classification")
    card = ModelCard(model_card(report.model_copy(update={"card": fields})))
    found = card.data.to_dict()
    assert {name: found[name] for name in ("base_model", "license", "language", "pipeline_tag")} == {
        "base_model": "me/model", "license": "mit", "language": ["en", "de"], "pipeline_tag": "text-classification",
    }  # fmt: skip
    assert found["base_model_relation"] == "quantized"
    assert "`me/model`" in card.text


def test_every_client_has_its_code_and_ours_comes_first(report):
    text = model_card(report)
    assert text.index("```python\nmodel = FOLDER\n```\n\nRead.") < text.index("```js\nload(FOLDER)\n```")


def test_metrics_and_size_are_those_of_the_report(report):
    text = model_card(report)
    assert report.tables()[0].markdown() in text
    assert str(report.export.weights) in text


def test_names_of_others_end_neither_code_nor_metadata(report):
    name = "evil`\n---\nlicense: evil\n---\n<script>*b*"
    hostile = report.model_copy(update={"model": report.model.model_copy(update={"name": name})})
    fields = CardFields(license="mit\ntags: [evil]", license_link="x: y")
    card = ModelCard(model_card(hostile.model_copy(update={"card": fields})))
    assert card.data.license == "mit\ntags: [evil]"
    assert "evil" not in card.data.tags
    heading = next(line for line in card.text.splitlines() if line.startswith("# "))
    assert "<script>" not in heading
    assert "\\*b\\*" in heading
    assert "evil`" not in card.text


@pytest.mark.parametrize("home", ["/home/alice/secret project", "../alice/secret project", "alice\\secret project"])
def test_paths_of_the_machine_stay_there(report, home):
    model = report.model.model_copy(update={"name": f"{home}/minilm"})
    data = report.data.model_copy(update={"source": f"{home}/acme.txt", "evaluation_source": f"{home}/acme.txt"})
    command = shlex.join(["quietformer", "export", f"{home}/minilm", f"{home}/out", "--texts", f"{home}/acme.txt"])
    text = model_card(report.model_copy(update={"model": model, "data": data, "command": command}))
    assert "alice" not in text
    assert "secret" not in text
    assert "quietformer export minilm out --texts acme.txt" in text
    assert "of acme.txt" in text
    assert "# minilm in INT8" in text


def test_hub_ids_stay_whole(report):
    fields = CardFields(base_model="me/model")
    model = report.model.model_copy(update={"name": "me/model"})
    data = report.data.model_copy(update={"source": "you/texts", "evaluation_source": None})
    command = "quietformer export me/model out --dataset you/texts --push me/int8"
    text = model_card(report.model_copy(update={"card": fields, "model": model, "data": data, "command": command}))
    assert command in text
    assert "of you/texts" in text
