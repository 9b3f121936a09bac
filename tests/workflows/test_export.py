"""`export`: real INT8 measured by what it is used for, and refused where it is worse than asked for."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

import quietformer as qf
from quietformer.data.known_items import FEWEST
from quietformer.data.tokenizers import train_tokenizer
from quietformer.deployment.openvino_runtime import OpenVinoModel
from tests.commands import fails

TOPICS = ("cats", "rivers", "bridges", "stars", "bread", "chess", "violins", "trains", "clocks", "maps")
PARAGRAPHS = [
    f"This first sentence is about {topic} and {number}. The rest of it says more of {topic} and of {number}. It ends."
    for number in ("red", "green", "blue", "grey", "black", "white", "brown", "pink")
    for topic in TOPICS
]
SMALL = ("--sequences", 12, "--calibration", 1, "--batch-size", 4, "--length", 24, "--no-timed", "--no-search")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A text encoder, its tokenizer, and text to calibrate and to evaluate on."""
    place = tmp_path_factory.mktemp("encoder")
    tokenizer = train_tokenizer(PARAGRAPHS, vocabulary=320, characters=10_000)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(place / "model")
    tokenizer.save_pretrained(place / "model")
    (place / "texts.txt").write_text("\n".join(PARAGRAPHS[::2]))
    (place / "other.txt").write_text("\n".join(PARAGRAPHS[1::2]))
    return place


SHIFT = 0.3
"""Added to every value, whose standard deviation is 1, it leaves a cosine of about 0.96."""


def export_arguments(place, out, *options):
    texts = ("--texts", place / "texts.txt", "--eval-texts", place / "other.txt")
    return ("export", place / "model", out, *texts, *SMALL, *options)


def export(run, place, out, *options):
    return run(*export_arguments(place, out, *options))


def test_quality_that_suffices_is_shipped_with_its_report(run, encoder, tmp_path):
    limits = ("--min-quality", "cosine=0.9", "--min-quality", "ndcg10=0.01")
    code, out, error = export(run, encoder, tmp_path / "int8", *limits)
    assert code == 0, error
    report = json.loads((tmp_path / "int8" / "report.json").read_text())
    assert report["real"]["cosine"] >= 0.9
    assert 0.01 <= report["real"]["ndcg10"] <= 1
    assert "ndcg10" in out
    assert "--min-quality cosine=0.9" in report["command"]
    assert (tmp_path / "int8" / "model.onnx").is_file()


def test_the_fp32_graph_is_the_original_whatever_the_search_changes(encoder, tmp_path):
    options = {"texts": encoder / "texts.txt", "sequences": 12, "calibration": 2, "batch_size": 4, "length": 24}
    out = tmp_path / "int8"
    report = qf.export(encoder / "model", out, keep_fp32=True, timed=False, runtime="onnxruntime", **options)
    assert any(step.kept for step in report.steps if step.name == "weight rounding")
    model = qf.OnnxModel(out, file="model_fp32.onnx")
    batch = dict(model.tokenizer(PARAGRAPHS[:4], return_tensors="pt", padding=True, truncation=True, max_length=24))
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(encoder / "model")(**batch).last_hidden_state
    torch.testing.assert_close(model(batch)["last_hidden_state"], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("earlier", [False, True])
def test_too_little_quality_ships_nothing(run, encoder, tmp_path, earlier):
    place = tmp_path / "int8"
    if earlier:
        place.mkdir()
        (place / "model.onnx").write_text("an earlier model")
    options = ("--min-quality", "cosine=0.999999", "--bits", "w2a2", "--overwrite", "--json", tmp_path / "report.json")
    code, out, error = export(run, encoder, place, *options)
    line = next(line for line in error.splitlines() if line.startswith("quietformer: "))
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 3
    assert f"reaches cosine {report['real']['cosine']:.4f}" in line
    assert "asks for 0.999999" in line
    assert "nothing was written" in line
    assert "real INT8, ONNX Runtime" in out  # the table of what was reached
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({"int8", "report.json"} if earlier else {"report.json"})
    if earlier:
        assert [path.name for path in place.iterdir()] == ["model.onnx"]
        assert (place / "model.onnx").read_text() == "an earlier model"


def test_python_gets_the_report_with_the_error_and_what_the_search_tried(encoder, tmp_path):
    with pytest.raises(qf.QualityError, match=r"the search kept .*; nothing was written") as caught:
        qf.export(
            encoder / "model", tmp_path / "int8", texts=encoder / "texts.txt", eval_texts=encoder / "other.txt",
            sequences=8, calibration=1, batch_size=4, length=24, timed=False, bits="w3a3", min_quality={"cosine": 1.5},
        )  # fmt: skip
    assert "in ONNX Runtime reaches cosine" in str(caught.value)
    report = caught.value.report
    assert isinstance(report, qf.Report)
    assert any(step.kept for step in report.steps)
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("cosin=0.9", "unknown metric 'cosin'; did you mean 'cosine'?"),
        ("cosine", "takes METRIC=VALUE with a number"),
        ("cosine=high", "takes METRIC=VALUE with a number"),
        ("perplexity=20", "BertModel is not measured by it; choose from cosine"),
        ("wer=0.1", "it needs a whole speech model"),
    ],
)
def test_a_limit_that_cannot_be_tested_is_one_line_and_exit_code_2(run, encoder, tmp_path, limit, message):
    texts = ("--texts", encoder / "texts.txt", "--eval-texts", encoder / "other.txt")
    arguments = ("export", encoder / "model", tmp_path / "int8", *texts, *SMALL, "--min-quality", limit)
    assert message in fails(run, *arguments)
    assert not (tmp_path / "int8").exists()


def test_retrieval_needs_paragraphs(run, encoder, tmp_path):
    (tmp_path / "few.txt").write_text("\n".join(PARAGRAPHS[: FEWEST - 1]))
    texts = ("--texts", encoder / "texts.txt", "--eval-texts", tmp_path / "few.txt")
    arguments = ("export", encoder / "model", tmp_path / "int8", *texts, *SMALL, "--min-quality", "ndcg10=0.1")
    assert "it needs paragraphs of two sentences" in fails(run, *arguments)


def test_every_runtime_must_have_the_quality(run, encoder, tmp_path, monkeypatch):
    right = OpenVinoModel.run
    monkeypatch.setattr(OpenVinoModel, "run", lambda self, feeds: right(self, feeds) + SHIFT)
    code, _, error = export(run, encoder, tmp_path / "int8", "--min-quality", "cosine=0.98")
    assert code == 3
    assert "real INT8 in OpenVINO reaches cosine 0.9" in error
    assert "INT8 in OpenVINO has a mean cosine of 0.9" in error  # the warning
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_runtime_that_gives_something_else_is_refused(run, encoder, tmp_path, monkeypatch, value):
    right = OpenVinoModel.run
    monkeypatch.setattr(OpenVinoModel, "run", lambda self, feeds: value * right(self, feeds))
    line = fails(run, *export_arguments(encoder, tmp_path / "int8", "--for", "openvino"))
    assert "INT8 in OpenVINO" in line
    assert "nothing was written; export with --runtime onnxruntime" in line
    assert not (tmp_path / "int8").exists()


def test_a_second_runtime_that_gives_something_else_is_left_out(run, encoder, tmp_path, monkeypatch):
    right = OpenVinoModel.run
    monkeypatch.setattr(OpenVinoModel, "run", lambda self, feeds: -right(self, feeds))
    code, out, error = export(run, encoder, tmp_path / "int8", "--timed")
    assert code == 0, error
    assert "to its simulation, and at least 0.9 is asked for; it is left out" in error
    assert "real INT8, OpenVINO" not in out
    assert not list((tmp_path / "int8").rglob("openvino_model.*"))
    assert qf.OnnxModel(tmp_path / "int8").encode("A text.").shape == (32,)
    report = qf.Report.read(tmp_path / "int8" / "report.json")
    assert [one.error is None for one in report.export.runtimes] == [True, False]
    assert "openvino" not in {run.runtime for row in report.export.latency for run in row.runs}
