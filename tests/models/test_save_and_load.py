"""A folder gives its model back exactly, never another one in silence, and damage is named in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    PreTrainedTokenizerFast,
)

import quietformer as qf
from quietformer.config.attention import PatchNormSpec
from quietformer.errors import CheckpointError, QuietformerError, UnsupportedModelError
from quietformer.models import save as saving
from tests.tiny_models import PAPER, VARIANTS, build, inputs, logits

WEIGHTS = "quietformer.safetensors"
TINY = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def given_for(name, dtype):
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs(name).items()}


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_load_gives_identical_logits(name, dtype, spec, tmp_path):
    model, given = build(name).to(dtype), given_for(name, dtype)
    qf.apply_attention_(model, spec)
    qf.advance_warmup_(model, 3)
    expected = logits(model, given)
    qf.save(model, tmp_path / "out")
    loaded = qf.load(tmp_path / "out")
    assert torch.equal(logits(loaded, given), expected)
    assert loaded.dtype == dtype
    assert not loaded.training
    # The registered loader does the same for whoever only imported us.
    again = type(model).from_pretrained(tmp_path / "out")
    assert torch.equal(logits(again, given), expected)
    # And what was loaded can be saved, trained and unmade like any other.
    qf.save(again, tmp_path / "again")
    assert torch.equal(logits(qf.load(tmp_path / "again"), given), expected)
    qf.remove_attention_(loaded)
    vanilla = build(name).to(dtype)
    vanilla.set_attn_implementation(loaded.config._attn_implementation)
    assert torch.equal(logits(loaded, given), logits(vanilla, given))


def test_base_classes_load_the_encoder_alone(tmp_path):
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["both"])
    qf.save(model, tmp_path / "out")
    encoder, given = AutoModel.from_pretrained(tmp_path / "out"), inputs("bert")
    with torch.no_grad():
        expected = model.bert(**given).last_hidden_state
        assert torch.equal(encoder(**given).last_hidden_state, expected)


def test_a_trainers_save_pretrained_can_be_loaded_too(tmp_path):
    model, given = build("bert"), inputs("bert")
    qf.apply_attention_(model, VARIANTS["both"])
    model.save_pretrained(tmp_path / "out")
    assert torch.equal(logits(qf.load(tmp_path / "out"), given), logits(model, given))


def test_shards_are_renamed_and_found(tmp_path, monkeypatch):
    model, given = build("bert"), inputs("bert")
    qf.apply_attention_(model, VARIANTS["both"])
    plain = type(model).save_pretrained
    monkeypatch.setattr(type(model), "save_pretrained", lambda self, folder: plain(self, folder, max_shard_size="20KB"))
    qf.save(model, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("quietformer-*.safetensors"))) > 1
    assert not list((tmp_path / "out").glob("model*"))
    assert torch.equal(logits(qf.load(tmp_path / "out"), given), logits(model, given))


def test_the_patch_norm_is_saved_with_the_model(tmp_path):
    model, given = build("vit"), inputs("vit")
    before = logits(model, given)
    qf.add_patch_norm_(model, PatchNormSpec(eps=1e-5))
    torch.nn.init.normal_(model.vit.embeddings.patch_embeddings.quiet_norm.weight)
    after = logits(model, given)
    assert not torch.allclose(before, after)
    embedded = model.vit.embeddings.patch_embeddings(given["pixel_values"])
    norm = model.vit.embeddings.patch_embeddings.quiet_norm
    hooks, model.vit.embeddings.patch_embeddings._forward_hooks = (
        model.vit.embeddings.patch_embeddings._forward_hooks,
        {},
    )
    raw = model.vit.embeddings.patch_embeddings(given["pixel_values"])
    model.vit.embeddings.patch_embeddings._forward_hooks = hooks
    torch.testing.assert_close(embedded, torch.nn.functional.layer_norm(raw, (32,), norm.weight, norm.bias, 1e-5))
    qf.save(model, tmp_path / "norm")
    loaded = qf.load(tmp_path / "norm")
    loaded.set_attn_implementation("eager")  # without our attention, transformers' default is another kernel
    assert torch.equal(logits(loaded, given), after)
    qf.apply_attention_(model, VARIANTS["gate-linear"])
    qf.save(model, tmp_path / "both")
    assert torch.equal(logits(qf.load(tmp_path / "both"), given), logits(model, given))
    with pytest.raises(UnsupportedModelError, match="patch_embeddings"):
        qf.add_patch_norm_(build("bert"))


PLAIN = """
import sys, transformers
folder, *options = sys.argv[1:]
kwargs = dict(option.split("=") for option in options)
for cls in (transformers.AutoModelForMaskedLM, transformers.AutoModel, transformers.BertForMaskedLM):
    try:
        cls.from_pretrained(folder, **kwargs)
    except (OSError, ValueError) as error:
        print("refused:", type(error).__name__)
    else:
        print("LOADED")
"""


@pytest.mark.parametrize("spec_name", ["clipped-gamma", "gate-linear"])
def test_plain_transformers_refuses_the_folder(spec_name, tmp_path):
    """Without the import, vanilla attention must be impossible to get: in a process that has never heard of us."""
    model = build("bert")
    qf.apply_attention_(model, VARIANTS[spec_name])
    qf.save(model, tmp_path / "saved")
    model.save_pretrained(tmp_path / "pretrained")
    for folder, *options in (["saved"], ["saved", "attn_implementation=eager"], ["pretrained"]):
        run = subprocess.run(
            [sys.executable, "-c", PLAIN, str(tmp_path / folder), *options], capture_output=True, text=True, check=True
        )
        assert run.stdout.count("refused:") == 3, run.stdout


def test_import_alone_is_enough_for_plain_from_pretrained(tmp_path):
    model, given = build("bert"), inputs("bert")
    qf.apply_attention_(model, VARIANTS["both"])
    qf.save(model, tmp_path / "out")
    save_file({"ids": given["input_ids"], "logits": logits(model, given)}, tmp_path / "expected.safetensors")
    for first, second in (("quietformer", "transformers"), ("transformers", "quietformer")):
        code = f"""
import {first}, {second}, torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM
expected = load_file({str(tmp_path / "expected.safetensors")!r})
model = AutoModelForMaskedLM.from_pretrained({str(tmp_path / "out")!r})
with torch.no_grad():
    assert torch.equal(model(expected["ids"]).logits, expected["logits"])
"""
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path) -> Path:
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["both"])
    qf.save(model, tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, change) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def edit_weights(folder: Path, change) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def section(change):
    return lambda folder: edit_config(folder, lambda config: change(config["quantization_config"]))


def truncate(path: Path, keep: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


GATE = "bert.encoder.layer.0.attention.self.quiet.gating.weight"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"
DAMAGE = {
    "no folder": (lambda f: shutil.rmtree(f), "is not there"),
    "a file instead": (lambda f: (shutil.rmtree(f), f.write_text("x")), "is a file"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "config cut short": (lambda f: truncate(f / "config.json", 0.5), "cannot be read as JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object"),
    "config is binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "cannot be read as JSON"),
    "no section": (lambda f: edit_config(f, lambda c: c.pop("quantization_config")), "has no quietformer section"),
    "another method": (section(lambda s: s.update(quant_method="gptq")), "has no quietformer section"),
    "newer format": (section(lambda s: s.update(version=99)), "written in format 99"),
    "no version": (section(lambda s: s.pop("version")), "no usable version"),
    "unknown field": (section(lambda s: s.update(atention={})), "did you mean 'attention'"),
    "unknown normalizer": (
        section(lambda s: s["attention"]["normalizer"].update(kind="clipped")),
        "unknown normalizer 'clipped'",
    ),
    "bad value": (section(lambda s: s["attention"]["normalizer"].update(gamma=1.0)), "gamma must be <= 0, got 1.0"),
    "weights outside": (section(lambda s: s.update(weights="../x.safetensors")), "must be a file name"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "has lost its weights"),
    "weights cut short": (lambda f: truncate(f / WEIGHTS, 0.9), "damaged or cut short"),
    "weights cut in the header": (lambda f: truncate(f / WEIGHTS, 0.01), "damaged or cut short"),
    "weights empty": (lambda f: (f / WEIGHTS).write_bytes(b""), "damaged or cut short"),
    "weights are a pickle": (lambda f: torch.save({}, f / WEIGHTS), "damaged or cut short"),
    "missing tensor": (lambda f: edit_weights(f, lambda t: t.pop(QUERY)), "1 missing tensors"),
    "missing gate": (lambda f: edit_weights(f, lambda t: t.pop(GATE)), "gating.weight is missing from the weights"),
    "renamed tensor": (lambda f: edit_weights(f, lambda t: t.update({QUERY + "s": t.pop(QUERY)})), "missing tensors"),
    "renamed gate": (
        lambda f: edit_weights(f, lambda t: t.update({GATE.replace("gating.w", "gatings.w"): t.pop(GATE)})),
        "gating.weight is missing from the weights",
    ),
    "extra tensor": (lambda f: edit_weights(f, lambda t: t.update(extra=torch.ones(2))), "unexpected tensors"),
    "wrong shape": (lambda f: edit_weights(f, lambda t: t.update({QUERY: torch.ones(3, 3)})), "has shape (3, 3)"),
    "wrong gate shape": (lambda f: edit_weights(f, lambda t: t.update({GATE: torch.ones(3, 3)})), "has shape (3, 3)"),
    "unknown class": (lambda f: edit_config(f, lambda c: c.update(architectures=["Nope"])), "unknown architecture"),
    "no class": (lambda f: edit_config(f, lambda c: c.pop("architectures")), "architectures must name one class"),
    "another model type": (lambda f: edit_config(f, lambda c: c.update(model_type="opt")), "has model_type 'bert'"),
    "its own code": (
        lambda f: edit_config(f, lambda c: c.update(architectures=["Own"], auto_map={"AutoModel": "own.Own"})),
        "trust_remote_code=True if you trust it",
    ),
    "bad model value": (lambda f: edit_config(f, lambda c: c.update(hidden_size="wide")), "does not load"),
    "other sizes": (lambda f: edit_config(f, lambda c: c.update(num_hidden_layers=3)), "missing from the weights"),
    "no heads": (lambda f: edit_config(f, lambda c: c.update(num_attention_heads=0)), "does not load"),
    "bad labels": (lambda f: edit_config(f, lambda c: c.update(id2label=3)), "does not load"),
    "bad dtype": (lambda f: edit_config(f, lambda c: c.update(dtype="float99")), "does not load"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 100_000), "cannot be read as JSON"),
    "whole numbers": (
        lambda f: edit_weights(f, lambda t: t.update({GATE: t[GATE].to(torch.int8)})),
        "the model needs",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_in_one_line(name, folder):
    harm, message = DAMAGE[name]
    harm(folder)
    with pytest.raises(CheckpointError) as raised:
        qf.load(folder)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


def test_a_shard_outside_the_folder_is_refused(folder):
    shutil.copy(folder / WEIGHTS, folder.parent / "s.safetensors")
    shutil.copy(folder / WEIGHTS, folder / "s.safetensors")
    index = {"metadata": {}, "weight_map": {name: "../s.safetensors" for name in load_file(folder / WEIGHTS)}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    section(lambda s: s.update(weights=f"{WEIGHTS}.index.json"))(folder)
    with pytest.raises(CheckpointError, match="not a file of the folder"):
        qf.load(folder)


def test_a_missing_shard_is_named(folder):
    index = {"metadata": {}, "weight_map": {"a": "quietformer-00001-of-00002.safetensors"}}
    (folder / WEIGHTS).rename(folder / "other")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    section(lambda s: s.update(weights=f"{WEIGHTS}.index.json"))(folder)
    with pytest.raises(CheckpointError, match=r"quietformer-00001-of-00002.safetensors, named in"):
        qf.load(folder)
    (folder / f"{WEIGHTS}.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not a weight index"):
        qf.load(folder)


def test_a_gate_missing_is_loud_for_plain_from_pretrained_as_well(folder):
    edit_weights(folder, lambda tensors: tensors.pop(GATE))
    with pytest.raises(CheckpointError, match="missing"):
        AutoModelForMaskedLM.from_pretrained(folder)


def test_saving_over_a_folder_replaces_the_model_and_keeps_the_rest(folder):
    (folder / "README.md").write_text("mine")
    (folder / "runs").mkdir()
    (folder / "runs" / "log").write_text("log")
    model, given = build("bert", seed=3), inputs("bert")
    qf.apply_attention_(model, VARIANTS["softmax1"])
    qf.save(model, folder)
    assert torch.equal(logits(qf.load(folder), given), logits(model, given))
    assert (folder / "README.md").read_text() == "mine"
    assert (folder / "runs" / "log").read_text() == "log"
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_save_leaves_the_old_folder_whole(folder, error, monkeypatch):
    given, old = inputs("bert"), logits(qf.load(folder), inputs("bert"))
    model = build("bert", seed=3)
    qf.apply_attention_(model, VARIANTS["softmax1"])

    def fail(*_):
        raise error

    monkeypatch.setattr(saving, "_rename_weights", fail)
    with pytest.raises(BaseException) as raised:
        qf.save(model, folder)
    assert raised.type in (KeyboardInterrupt, OSError)
    assert torch.equal(logits(qf.load(folder), given), old)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]


def test_an_interruption_between_the_renames_puts_the_old_folder_back(folder, monkeypatch):
    given, old, rename = inputs("bert"), logits(qf.load(folder), inputs("bert")), os.rename
    model = build("bert", seed=3)
    qf.apply_attention_(model, VARIANTS["softmax1"])
    calls = []

    def second_fails(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr("quietformer.files._exchange", lambda one, other: False)  # a system that cannot exchange names
    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(KeyboardInterrupt):
        qf.save(model, folder)
    assert torch.equal(logits(qf.load(folder), given), old)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]


def test_models_that_share_a_config_do_not_share_their_attention(tmp_path):
    config = build("bert").config
    models, given = [BertForMaskedLM(config).eval() for _ in range(3)], inputs("bert")
    plain = logits(models[2], given)
    qf.apply_attention_(models[0], VARIANTS["clipped-gamma"])
    qf.apply_attention_(models[1], VARIANTS["softmax1"])
    for index in (0, 1):
        qf.save(models[index], tmp_path / str(index))
        assert torch.equal(logits(qf.load(tmp_path / str(index)), given), logits(models[index], given))
    assert torch.equal(logits(models[2], given), plain)
    qf.remove_attention_(models[0])
    assert logits(models[1], given).isfinite().all()


def clip():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    text = CLIPTextConfig(**sizes, vocab_size=99, max_position_embeddings=32, eos_token_id=2)
    vision = CLIPVisionConfig(**sizes, image_size=16, patch_size=8)
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.2)
    return model


@pytest.mark.parametrize("how", ["save", "save_pretrained"])
def test_parts_of_a_composite_model_load_with_their_attention(how, tmp_path):
    model, tokens = clip(), inputs("bert")["input_ids"]
    qf.apply_attention_(model, VARIANTS["both"])
    if how == "save":
        qf.save(model, tmp_path / "clip")
    else:
        model.save_pretrained(tmp_path / "clip")
    with torch.no_grad():
        expected = model.text_model(tokens).last_hidden_state
        alone = CLIPTextModel.from_pretrained(tmp_path / "clip")
        assert torch.equal(alone(tokens).last_hidden_state, expected)
        model.text_model.save_pretrained(tmp_path / "text")
        alone = CLIPTextModel.from_pretrained(tmp_path / "text")
        assert torch.equal(alone(tokens).last_hidden_state, expected)
    whole = qf.load(tmp_path / "clip")
    assert len(list(qf.attention_cores(whole))) == 4


def test_attention_in_a_part_only_is_not_saved_as_the_whole(tmp_path):
    model = clip()
    qf.apply_attention_(model.vision_model, VARIANTS["softmax1"])
    with pytest.raises(qf.QuietformerError, match="applied to a part"):
        qf.save(model, tmp_path / "out")
    qf.remove_attention_(model)
    model(input_ids=inputs("bert")["input_ids"], pixel_values=torch.randn(2, 3, 16, 16))


def test_the_folder_says_what_it_needs_and_drops_a_foreign_tokenizer(folder, tmp_path):
    assert "import quietformer" in (folder / "README.md").read_text()
    (folder / "vocab.txt").write_text("old")
    (folder / "model-card.md").write_text("mine")
    qf.save(build_changed(), folder)
    assert not (folder / "vocab.txt").exists()
    assert (folder / "model-card.md").read_text() == "mine"


def train_without_telling(model, *, steps):
    for _ in range(steps):
        model.train()(**inputs("bert"))


def test_a_warmup_nobody_moved_is_noticed(tmp_path):
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["clipped-warmup"])
    with pytest.warns(UserWarning, match="gamma is still 0"):
        qf.save(model, tmp_path / "out")
    with pytest.warns(UserWarning, match="gamma is still 0"):
        train_without_telling(model, steps=200)


def test_save_refuses_what_it_would_lose(tmp_path):
    with pytest.raises(qf.QuietformerError, match=r"model\.save_pretrained"):
        qf.save(build("bert"), tmp_path / "out")
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["softmax1"])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    with pytest.raises(qf.QuietformerError, match="not a model folder"):
        qf.save(model, tmp_path / "notes")
    with pytest.raises(qf.QuietformerError, match="not a model folder"):
        qf.save(model, tmp_path / "notes" / "thesis.txt")
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "years of work"


def tokenizer():
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "quiet": 1}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def test_the_tokenizer_comes_along(tmp_path):
    origin = tmp_path / "origin"
    build("bert").save_pretrained(origin)
    tokenizer().save_pretrained(origin)
    model = AutoModelForMaskedLM.from_pretrained(origin)
    qf.apply_attention_(model, VARIANTS["softmax1"])
    qf.save(model, tmp_path / "copied")
    qf.save(build_changed(), tmp_path / "given", processor=tokenizer())
    for folder in ("copied", "given"):
        assert PreTrainedTokenizerFast.from_pretrained(tmp_path / folder)("quiet").input_ids == [1]


def test_settings_of_generation_that_transformers_would_not_save_are_kept(tmp_path):
    """Published models have a temperature beside greedy decoding; reading that is allowed, writing it is not."""
    build("llama").save_pretrained(tmp_path / "origin")
    path = tmp_path / "origin" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": False, "temperature": 0.6, "top_p": 0.9}))
    model = qf.open_model(tmp_path / "origin")
    with pytest.raises(ValueError, match="temperature"):
        model.save_pretrained(tmp_path / "refused")
    qf.apply_attention_(model, VARIANTS["softmax1"])
    qf.save(model, tmp_path / "ours")
    kept = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert (kept["do_sample"], kept["temperature"], kept["top_p"]) == (False, 0.6, 0.9)
    assert model.generation_config.temperature == qf.load(tmp_path / "ours").generation_config.temperature == 0.6


def build_changed():
    model = build("bert")
    qf.apply_attention_(model, VARIANTS["softmax1"])
    return model


def test_another_number_of_labels_is_drawn_anew_as_for_plain_folders(tmp_path):
    torch.manual_seed(0)
    plain = BertForSequenceClassification(BertConfig(**TINY, num_labels=2))
    plain.save_pretrained(tmp_path / "plain")
    qf.apply_attention_(plain, VARIANTS["both"])
    qf.save(plain, tmp_path / "ours")
    for folder in ("plain", "ours"):
        with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
            BertForSequenceClassification.from_pretrained(tmp_path / folder, num_labels=5)
        model, info = BertForSequenceClassification.from_pretrained(
            tmp_path / folder, num_labels=5, ignore_mismatched_sizes=True, output_loading_info=True
        )
        assert {key[0] for key in info["mismatched_keys"]} == {"classifier.weight", "classifier.bias"}
        assert model.classifier.out_features == 5
        assert bool(model.classifier.weight.isfinite().all())
        assert model.classifier.weight.std() > 0
        for name, tensor in plain.state_dict().items():
            if "classifier" not in name and (folder == "ours" or ".quiet." not in name):
                assert torch.equal(model.state_dict()[name], tensor), name


def test_a_gate_of_another_shape_is_refused_even_so(folder):
    edit_weights(folder, lambda tensors: tensors.update({GATE: torch.ones(3, 3)}))
    with pytest.raises(CheckpointError, match=r"has shape \(3, 3\)"):
        AutoModelForMaskedLM.from_pretrained(folder, ignore_mismatched_sizes=True)


def test_attentions_asked_for_in_the_config_are_refused_before_anything_is_changed():
    model, given = build("bert"), inputs("bert")
    model.config.output_attentions = True
    with pytest.raises(UnsupportedModelError, match=r"set config.output_attentions = False"):
        qf.apply_attention_(model, VARIANTS["softmax1"])
    model.config.output_attentions = False
    qf.apply_attention_(model, VARIANTS["softmax1"])
    assert len(model(**given, output_attentions=True).attentions) == 2


@pytest.mark.parametrize("spec", ["softmax1", "both"])
def test_a_change_to_a_part_is_refused_by_the_wholes_save_pretrained_too(spec, tmp_path):
    model = build("bert")
    qf.apply_attention_(model.bert, VARIANTS[spec])
    with pytest.raises(QuietformerError, match="to a part of this BertForMaskedLM only"):
        model.save_pretrained(tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    model.bert.save_pretrained(tmp_path / "part")
    given = inputs("bert")
    with torch.no_grad():
        expected = model.bert(**given).last_hidden_state
        assert torch.equal(AutoModel.from_pretrained(tmp_path / "part")(**given).last_hidden_state, expected)


def test_plain_transformers_names_us_when_it_refuses_the_folder(folder):
    code = PLAIN.replace("type(error).__name__", "error")
    run = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert run.stdout.count("import quietformer before it is loaded") == 3, run.stdout
