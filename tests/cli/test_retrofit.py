"""`quietformer retrofit`: a model healed, one left alone, a run resumed, and one line for every mistake."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

import quietformer as qf
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.recipe_files import read_recipe
from quietformer.config.recorded_changes import changes_of
from quietformer.data.tokenizers import tokenizer_of
from quietformer.models.open_any import open_model
from tests.commands import fails
from tests.training.pretrained import tiny_pretrained
from tests.training.recipes import write_prose

QUICK = (
    "--placement",
    "paper",
    "--steps",
    "6",
    "--batch-size",
    "4",
    "--sequences",
    "24",
    "--seeds",
    "1",
    "--length",
    "24",
)


@pytest.fixture
def text(tmp_path):
    return write_prose(tmp_path / "text.txt")


@pytest.fixture
def loud(tmp_path):
    return tiny_pretrained(tmp_path / "loud", outlier=150.0)


def test_a_model_is_healed_measured_exported_and_shown(run, tmp_path, text, loud):
    other = write_prose(tmp_path / "other.txt", 40)
    out, figures_path = tmp_path / "out", tmp_path / "figures.json"
    code, printed, error = run(
        "retrofit", loud, out, *QUICK, "--texts", text, "--eval-texts", other, "--json", figures_path
    )
    assert code == 0, error
    figures = json.loads(figures_path.read_text())
    assert figures == json.loads((out / "retrofit.json").read_text())
    for row in figures["rows"]:
        assert row["what"].split(":")[0].split(",")[0] in printed.replace("\n", " ")
    assert figures["before"]["fp32"]["cosine"] == pytest.approx(1.0, abs=1e-6)
    assert "report.html" in printed
    assert (out / "report.html").stat().st_size > 1000
    healed, original = qf.load(out), open_model(str(loud))
    tokenizer = tokenizer_of(str(out))
    batch = dict(tokenizer(["A sentence about names.", "Another."], padding=True, return_tensors="pt"))
    with torch.no_grad():
        float_states = healed(**{k: batch[k] for k in ("input_ids", "attention_mask")}).last_hidden_state
    session = onnxruntime.InferenceSession(str(out / "int8" / "model.onnx"))
    given = {item.name: batch[item.name].numpy() for item in session.get_inputs()}
    states = torch.from_numpy(session.run(None, given)[0])
    cosine = torch.nn.functional.cosine_similarity(states, float_states, dim=-1)[batch["attention_mask"].bool()]
    assert cosine.mean() > 0.8
    assert healed.num_parameters() > original.num_parameters()
    assert figures["after"]["real"]["agreement"]["cosine"] > 0.99


def test_it_is_exported_and_reloaded_like_any_model(run, tmp_path, text, loud):
    out = tmp_path / "out"
    assert run("retrofit", loud, out, *QUICK, "--texts", text, "--no-real")[0] == 0
    assert not (out / "int8").exists()
    few = ("--texts", text, "--sequences", "8", "--length", "24")
    code, _, error = run("export", out, tmp_path / "onnx", *few, "--per-channel")
    assert code == 0, error
    code, _, error = run(
        "inspect", out, "--texts", text, "--sequences", "4", "--length", "24", "--page", tmp_path / "p.html"
    )
    assert code == 0, error


def test_of_a_small_text_it_holds_out_what_it_can(run, tmp_path, loud):
    """By default more would be held out than this text makes."""
    text, figures = write_prose(tmp_path / "little.txt", 2), tmp_path / "figures.json"
    call = ("retrofit", loud, tmp_path / "out", *QUICK, "--texts", text, "--no-real", "--json", figures)
    code, _, error = run(*call)
    assert code == 0, error
    recipe = read_recipe(tmp_path / "out" / "recipe.yaml")
    told = json.loads(figures.read_text())["data"]
    assert recipe.data.hold_out < RetrofitOptions().sequences
    assert told["train"] > 2 * recipe.data.hold_out - 1
    assert 0 < told["evaluation_sequences"] <= recipe.data.hold_out - recipe.data.validation_limit
    assert f"{told['train']} passages to train on, {recipe.data.validation_limit} to choose" in error
    assert run(*call)[0] == 0  # it is finished: the folder answers


def test_what_is_to_be_held_out_can_be_said(run, tmp_path, loud):
    text = write_prose(tmp_path / "little.txt", 2)
    line = fails(
        run, "retrofit", loud, tmp_path / "out", *QUICK, "--texts", text, "--no-real", "--set", "data.hold_out=999"
    )
    assert "data.hold_out keeps 999 of them" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("options", "gained"), [((), True), (("--balance", "0"), False)])
def test_residual_adds_are_balanced_unless_told_otherwise(run, tmp_path, text, loud, options, gained):
    out = tmp_path / "out"
    code, printed, error = run("retrofit", loud, out, *QUICK, "--texts", text, "--no-real", *options)
    assert code == 0, error
    assert ("Balanced and not trained" in printed) == gained
    assert bool(changes_of(qf.load(out)).gained_norms) == gained
    assert bool(json.loads((out / "retrofit.json").read_text())["balanced_alone"]) == gained
    assert bool(changes_of(qf.load(out)).gained_activations) == gained
    terms = read_recipe(str(out / "recipe.yaml")).to_dict()["regularizers"]
    assert any("sites" in term for term in terms) != gained  # ranges are held where balancing has not made them narrow


def test_balancing_that_is_asked_for_is_done_or_refused(run, tmp_path, text):
    causal = tiny_pretrained(tmp_path / "opt", "opt")
    given = ("--texts", text, "--no-real", "--balance", "0.5", "--force")
    assert "no residual adds between LayerNorms" in fails(run, "retrofit", causal, tmp_path / "out", *QUICK, *given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gate", ["none", "mlp", "all_heads", "elementwise"])
def test_every_gate_and_none(run, tmp_path, text, loud, gate):
    out = tmp_path / "out"
    code, _, error = run("retrofit", loud, out, *QUICK, "--texts", text, "--gate", gate, "--no-real")
    assert code == 0, error
    assert bool(list(qf.attention_cores(open_model(str(out))))) == (gate != "none")


@pytest.mark.parametrize("attention", ["clipped_softmax(alpha=2,warmup_steps=4)", "softmax1"])
def test_normalizers(run, tmp_path, text, loud, attention):
    out = tmp_path / "out"
    code, _, error = run(
        "retrofit", loud, out, *QUICK, "--texts", text, "--gate", "none", "--attention", attention, "--no-real"
    )
    assert code == 0, error
    core = next(core for _, core in qf.attention_cores(qf.load(out)))
    assert core.spec.label.split("(")[0] == attention.split("(")[0]


@pytest.mark.parametrize("name", ["llama", "masked", "vit"])
def test_other_kinds_of_models(run, tmp_path, text, name):
    model, out = tiny_pretrained(tmp_path / "model", name), tmp_path / "out"
    data = () if name == "vit" else ("--texts", text)
    code, _, error = run("retrofit", model, out, *QUICK, *data, "--force", "--no-real")
    assert code == 0, error
    figures = json.loads((out / "retrofit.json").read_text())
    assert figures["task"] == {"llama": "causal", "masked": "masked", "vit": "images"}[name]
    assert type(qf.load(out)) is type(open_model(str(model)))


def test_a_quiet_model_is_left_alone(run, tmp_path, text):
    model, out = tiny_pretrained(tmp_path / "quiet"), tmp_path / "out"
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    code, printed, _ = run("retrofit", model, out, *QUICK, "--texts", text, "--json", tmp_path / "f.json")
    assert code == 0
    assert "left alone" in printed
    assert not out.exists()
    assert before == {path.name: path.read_bytes() for path in model.iterdir()}
    assert json.loads((tmp_path / "f.json").read_text())["changed"] is False


def test_interrupted_it_resumes_to_the_same_weights_without_measuring_again(run, tmp_path, text, loud, monkeypatch):
    from quietformer.training import trainer
    from quietformer.workflows import retrofit as workflow

    command = (loud, *QUICK, "--texts", text, "--no-real", "--set", "training.save_every=2")
    assert run("retrofit", command[0], tmp_path / "whole", *command[1:])[0] == 0
    publish = trainer.publish

    def stopping(folder, name):
        publish(folder, name)
        if name == "checkpoint-4":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "publish", stopping)
        assert run("retrofit", command[0], tmp_path / "part", *command[1:])[0] == 130
    sides = []
    measure = workflow.measure_side
    monkeypatch.setattr(
        workflow, "measure_side", lambda *args, **kwargs: sides.append(args) or measure(*args, **kwargs)
    )
    assert run("retrofit", command[0], tmp_path / "part", *command[1:])[0] == 0
    assert len(sides) == 1  # after; before was kept
    whole, part = (load_file(next((tmp_path / name).glob("*.safetensors"))) for name in ("whole", "part"))
    assert all(torch.equal(whole[key], part[key]) for key in whole)
    one, other = (json.loads((tmp_path / name / "retrofit.json").read_text())["rows"] for name in ("whole", "part"))
    assert [row["after"] for row in one] == [row["after"] for row in other]


def test_a_finished_folder_answers_for_its_own_command_alone(run, tmp_path, text, loud):
    out, given = tmp_path / "out", (*QUICK, "--texts", text, "--no-real", "--gate", "none")
    assert run("retrofit", loud, out, *given)[0] == 0
    before = (out / "retrofit.json").read_bytes()
    code, _, error = run("retrofit", loud, out, *given)
    assert code == 0
    assert "nothing to do" in error
    assert "another gate" in fails(run, "retrofit", loud, out, *given[:-1], "mlp")
    assert "another model" in fails(run, "retrofit", tiny_pretrained(tmp_path / "other"), out, *given)
    assert (out / "retrofit.json").read_bytes() == before
    (out / "retrofit.json").write_text("[]")
    assert run("retrofit", loud, out, *given)[0] == 0  # not a report: measured again


def test_mistakes_are_one_line_and_change_nothing(run, tmp_path, text, loud):
    out = tmp_path / "out"
    full = tmp_path / "full"
    full.mkdir()
    (full / "diary.txt").write_text("mine")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    broken = tiny_pretrained(tmp_path / "broken")
    model = open_model(str(broken))
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight[0, 0] = np.nan
    model.save_pretrained(broken)
    corrupt = tiny_pretrained(tmp_path / "corrupt")
    (corrupt / "model.safetensors").write_bytes(b"nonsense")
    q = (*QUICK, "--texts", text)
    for words, arguments in {
        "not there": (tmp_path / "nowhere", out, *q),
        "no.txt does not exist": (loud, out, *QUICK, "--texts", tmp_path / "no.txt"),
        "empty": (loud, out, *QUICK, "--texts", empty),
        "NaN": (broken, out, *q),
        "is damaged or cut short": (corrupt, out, *q),
        "unknown gate": (loud, out, *q, "--gate", "liner"),
        "unknown normalizer": (loud, out, *q, "--attention", "softmx"),
        "holds other things": (loud, full, *q),
        "MODEL itself": (loud, loud, *q),
        "has no tensor": (loud, out, *q, "--site", "ffn_outputs"),
        "one of --texts": (loud, out, *q, "--images", tmp_path),
        "takes text": (loud, out, *QUICK, "--images", full),
        "learning_rate must be > 0": (loud, out, *q, "--learning-rate", "0"),
        "no field": (loud, out, *q, "--set", "teacher.hiden=2"),
        "longer than": (loud, out, *QUICK, "--length", "4000", "--texts", text),
        "hold_out": (loud, out, "--texts", text, "--set", "data.hold_out=100000", "--steps", "2"),
    }.items():
        assert words in fails(run, "retrofit", *arguments), arguments
        assert not out.exists(), arguments
    assert (full / "diary.txt").read_text() == "mine"
