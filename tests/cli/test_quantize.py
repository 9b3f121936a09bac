"""`quietformer quantize` and `quietformer export` from end to end."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel, PreTrainedTokenizerFast

import quietformer as qf
from quietformer.config.recorded_changes import changes_of
from quietformer.models.open_any import open_model
from quietformer.models.pooling import pooling_of
from quietformer.models.sentence_folder import read_sentence_settings
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.quant.insertion import quantizers
from quietformer.results.base import Report
from tests.commands import fails
from tests.deployment.exports import small, write_encoder
from tests.report_words import words_of
from tests.tiny_models import VOCABULARY, build

FEW = ("--sequences", 4, "--calibration", 2, "--batch-size", 2, "--length", 12)


def words():
    named = {"[UNK]": 0, "[PAD]": 1, "[MASK]": 2} | {f"w{index}": index for index in range(3, VOCABULARY)}
    made = Tokenizer(models.WordLevel(named, unk_token="[UNK]"))
    from tokenizers import pre_tokenizers

    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]")


@pytest.fixture
def place(tmp_path):
    numbers = torch.randint(3, VOCABULARY, (60, 12), generator=torch.Generator().manual_seed(0)).tolist()
    (tmp_path / "text.txt").write_text("\n".join(" ".join(f"w{n}" for n in line) for line in numbers))
    with silenced_transformers():
        for name in ("bert", "opt", "vit"):
            build(name).save_pretrained(tmp_path / name)
            if name != "vit":
                words().save_pretrained(tmp_path / name)
        torch.manual_seed(0)
        small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
        BertModel(BertConfig(vocab_size=VOCABULARY, **small)).save_pretrained(tmp_path / "encoder")
        words().save_pretrained(tmp_path / "encoder")
    return tmp_path


def quantize(run, place, model, *options, texts=True):
    text = ("--texts", place / "text.txt") if texts else ()
    return run("quantize", place / model, *text, *FEW, "--page", place / "q.html", *options)


@pytest.mark.parametrize(
    ("model", "measure"), [("bert", "perplexity"), ("opt", "perplexity"), ("vit", "agreement"), ("encoder", "cosine")]
)
def test_it_measures_each_kind_of_model_by_its_own_task(run, place, model, measure):
    code, out, err = quantize(run, place, model, "--seeds", 2, texts=model != "vit")
    assert code == 0, err
    figures = json.loads((place / "q.json").read_text())
    assert figures["primary"] == measure
    assert measure in out
    assert len(figures["runs"]) == 2
    mean = sum(row["metrics"][measure] for row in figures["runs"]) / 2
    assert figures["quantized"][measure]["mean"] == pytest.approx(mean)
    assert figures["plan"]["weights"] == sum(site["role"] == "weight" for site in figures["plan"]["sites"])
    assert "quantized.html" not in out
    assert "<title>" in (place / "q.html").read_text()
    assert figures["command"].startswith("quietformer quantize ")


@pytest.mark.parametrize("bits", ["w6a8", "w4a8", "W6A6", "w16a16"])
def test_any_bits_run(run, place, bits):
    code, _, err = quantize(run, place, "opt", "--bits", bits, "--seeds", 1, "--weights", "mse", "--per-channel")
    assert code == 0, err
    figures = json.loads((place / "q.json").read_text())
    assert figures["label"] == bits.upper()
    grids = {site["grid"] for site in figures["plan"]["sites"] if site["role"] == "weight"}
    assert f"s{figures['spec']['weight_bits']}@0" in grids


def test_fewer_bits_cost_more(run, place):
    found = []
    for bits in ("w16a16", "w8a8", "w3a3"):
        assert quantize(run, place, "encoder", "--bits", bits, "--seeds", 1)[0] == 0
        found.append(json.loads((place / "q.json").read_text())["quantized"]["cosine"]["mean"])
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(1.0, abs=1e-4)


def test_search_and_sensitivity_are_in_the_figures(run, place):
    code, out, err = quantize(run, place, "encoder", "--search", "--sensitivity", "--seeds", 1)
    assert code == 0, err
    figures = json.loads((place / "q.json").read_text())
    best = max(figures["search"], key=lambda row: row["metrics"]["cosine"])
    assert figures["spec"]["activations"]["kind"] == best["activations"].partition("(")[0]
    rows = figures["sensitivity"]["rows"]
    assert len(rows) == figures["plan"]["weights"] + figures["plan"]["activations"]
    assert all(row["only"] is not None and row["without"] is not None for row in rows)
    assert "Most harmful tensors" in out


def test_the_plan_says_what_is_quantized_and_what_not_and_why(run, place):
    given = ("--texts", place / "text.txt", "--length", 12, "--batch-size", 2, "--keep", "*.scores")
    code, out, err = run("quantize", place / "bert", "--plan", *given, "--json", place / "plan.json")
    assert code == 0, err
    plan = Report.read(place / "plan.json")
    assert any(item.why == "the head" for item in plan.left)
    assert any(item.why == "rule '*.scores'" for item in plan.left)
    assert words_of(plan) <= {*out.split()}
    assert not {path.suffix for path in place.iterdir()} & {".html"}
    code, _, err = run(*shlex.split(plan.command)[1:], "--json", place / "again.json", "--page", place / "plan.html")
    assert code == 0, err
    assert Report.read(place / "again.json") == plan
    assert plan.left[0].site in (place / "plan.html").read_text()
    same = qf.plan_quantization(place / "bert", texts=place / "text.txt", length=12, batch_size=2, keep=["*.scores"])
    assert same == plan


@pytest.mark.parametrize(
    "option", [("--out", "o"), ("--overwrite",), ("--seeds", 2), ("--search",), ("--sensitivity",)]
)
def test_a_plan_refuses_what_it_would_not_do(run, place, option):
    code, _, err = run("quantize", place / "bert", "--plan", *option)
    assert code == 2
    assert f"leave out {option[0]}" in err


def test_a_quantized_folder_loads_and_exports_as_it_was_calibrated(run, place):
    code, out, err = quantize(run, place, "bert", "--out", place / "saved", "--seeds", 2)
    assert code == 0, err
    simulated = json.loads((place / "q.json").read_text())["runs"][0]["metrics"]
    saved = qf.load(place / "saved")
    code, out, err = run(
        "export", place / "saved", place / "onnx", "--texts", place / "text.txt", *FEW, "--json", place / "e.json",
        "--weight-type", "uint8", "--threads", 1,
    )  # fmt: skip
    assert code == 0, err
    figures = json.loads((place / "e.json").read_text())
    assert figures["runs"][0]["metrics"] == pytest.approx(simulated)
    assert figures["real"]["perplexity"] == pytest.approx(simulated["perplexity"], rel=0.01)
    assert figures["export"]["weights"] + figures["export"]["activations"] == len(quantizers(saved))
    assert "real INT8, ONNX Runtime" in out
    assert "real INT8, OpenVINO" in out
    assert (place / "onnx" / "report.html").is_file()
    assert (place / "onnx" / "tokenizer.json").is_file()
    assert json.loads((place / "onnx" / "report.json").read_text()) == figures


def test_a_balanced_model_loses_less_and_is_exported_as_it_is(run, place):
    """One feature of the norms is far wider than the others, and the last norm takes it back, as in real encoders."""
    model = open_model(str(place / "encoder"))
    with torch.no_grad():
        for name, module in model.named_modules():
            if name in ("embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm"):
                module.weight[3] *= 20
            elif name == "encoder.layer.0.output.LayerNorm":
                module.weight[3] /= 20
    model.save_pretrained(place / "encoder")
    losses = []
    for options in ((), ("--balance",)):
        code, _, err = quantize(run, place, "encoder", "--per-channel", "--seeds", 1, *options)
        assert code == 0, err
        losses.append(1 - json.loads((place / "q.json").read_text())["quantized"]["cosine"]["mean"])
    assert losses[1] < 0.5 * losses[0]
    code, _, err = run(
        "export", place / "encoder", place / "onnx", "--texts", place / "text.txt", *FEW, "--balance", "--per-channel",
        "--threads", 1, "--json", place / "e.json",
    )  # fmt: skip
    assert code == 0, err
    figures = json.loads((place / "e.json").read_text())
    assert 1 - figures["real"]["cosine"] < 0.5 * losses[0]  # compared with the model before it was balanced


def test_what_cannot_be_balanced_is_told(run, place):
    code, _, err = quantize(run, place, "opt", "--balance")
    assert code == 2
    assert "no residual adds between LayerNorms to balance" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bits", "8"), "bits are written like w8a8"),
        (("--bits", "w1a8"), "weight_bits must be >= 2, got 1"),
        (("--acts", "runing-minmax"), "did you mean 'running_minmax'"),
        (("--weights", "percentile(q=200)"), "percentile: q must be"),
        (("--keep", "*.nothing"), "matches no tensor"),
        (("--keep", "*.scores=x"), "cannot read rule"),
        (("--page", "q.txt"), "ending in .html"),
        (("--json", "no/such/place.json"), "no folder"),
        (("--images", "somewhere"), "one of --texts, --dataset, --images and --audio"),
        (("--length", 1000), "longer than the 64 positions"),
        (("--eval-texts", "absent.txt"), "absent.txt is not there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, place, options, message):
    code, _, err = quantize(run, place, "bert", *options)
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("quietformer: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err
    assert not (place / "q.html").exists()


def test_export_refuses_what_it_would_overwrite_and_unknown_kinds(run, place):
    for arguments, message in (
        ((place / "bert", place / "opt"), "exists already"),
        ((place / "bert", place / "bert"), "is MODEL itself"),
        ((place / "bert", place / "text.txt"), "is a file"),
        ((place / "bert", place / "new", "--weight-type", "int4"), "'auto', 'int8' or 'uint8'"),
        ((place / "absent", place / "new"), "absent"),
    ):
        code, _, err = run("export", *arguments)
        assert code == 2
        assert message in err
        assert "Traceback" not in err
    assert not (place / "new").exists()


def test_nan_weights_are_named(run, place):
    model = build("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")
    with silenced_transformers():
        model.save_pretrained(place / "broken")
        words().save_pretrained(place / "broken")
    code, _, err = quantize(run, place, "broken")
    assert code == 2
    assert "bert.encoder.layer.0.output.dense.weight holds NaN" in err


def test_a_prefix_is_put_in_front_measured_and_saved(run, place):
    code, _, err = quantize(run, place, "opt", "--prefix", "7,9", "--kv-cache", "channel", "--out", place / "out")
    assert code == 0, err
    report = json.loads((place / "q.json").read_text())
    assert "prefix 7, 9" in report["label"]
    assert changes_of(qf.load(place / "out")).prefix.tokens == (7, 9)
    grids = {site["site"].rpartition(":")[2]: site["grid"] for site in report["plan"]["sites"]}
    assert grids["key"] == grids["value"] == "u8@4x8"


def test_a_whole_text_is_evaluated_in_windows(run, place):
    text = place / "text.txt"
    code, _, err = quantize(run, place, "opt", "--eval-texts", text, "--stride", 5)
    assert code == 0, err
    report = json.loads((place / "q.json").read_text())
    count = len(text.read_text().split())
    assert report["data"]["evaluation_sequences"] == 1 + -(-(count - 12) // 5)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("opt", ("--prefix", "newline"), "give auto, or ids of tokens such as 1,198"),
        ("opt", ("--prefix", "99"), "there is no token 99 in OPTForCausalLM"),
        ("opt", ("--prefix", ",".join(["3"] * 64)), "leaves no room for text"),
        ("bert", ("--prefix", "3"), "gives different outputs"),
        ("vit", ("--prefix", "auto"), "no causal language model"),
        ("opt", ("--stride", "5"), "--stride needs --eval-texts"),
    ],
)
def test_a_prefix_or_a_stride_that_cannot_be_is_one_line(run, place, model, options, message):
    code, _, err = quantize(run, place, model, *options, texts=model != "vit")
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (place / "q.json").exists()


def test_ranges_that_are_searched_cannot_be_named_as_well(run, place):
    line = fails(run, "quantize", place / "encoder", "--search", "--acts", "mse")
    assert "--search chooses the range of activations, which --acts names; give one of them" in line


@pytest.fixture
def published(tmp_path):
    """A sentence encoder as all-mpnet-base-v2 is published: the config names a class whose head the weights do not have."""
    folder = write_encoder(tmp_path / "published")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = MPNetModel(MPNetConfig(vocab_size=json.loads((folder / "config.json").read_text())["vocab_size"], **sizes))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["MPNetForMaskedLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_every_command_follows_and_keeps_a_published_sentence_encoder(run, published, tmp_path):
    settings = read_sentence_settings(published)
    quick = small(published)
    given = ("--texts", quick["texts"], "--sequences", 6, "--batch-size", 4)
    calibrated = (*given, "--calibration", 1)
    quantized, exported, changed = (tmp_path / name for name in ("quantized", "exported", "changed"))
    for command in (
        ("inspect", published, *given, "--page", tmp_path / "i.html"),
        ("quantize", published, *calibrated, "--seeds", 1, "--page", tmp_path / "q.html", "--out", quantized),
        ("export", quantized, exported, *calibrated, "--no-timed"),
        ("convert", published, changed, "--gate", "linear"),
    ):
        code, _, err = run(*command)
        assert code == 0, err
    for name in ("i", "q"):
        assert json.loads((tmp_path / f"{name}.json").read_text())["data"]["length"] == settings.max_seq_length
    for folder in (quantized, exported, changed):
        assert read_sentence_settings(folder) == settings
    reference = qf.open_model(published)
    for folder in (quantized, changed):
        opened = qf.open_model(folder)
        assert isinstance(opened, MPNetModel)
        assert pooling_of(opened) == pooling_of(reference)
