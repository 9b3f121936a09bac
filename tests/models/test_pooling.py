"""A sentence-transformers folder keeps what it says about embeddings, and every measurement pools as it says."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3ForCausalLM, RobertaConfig, RobertaForMaskedLM

import quietformer as qf
from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.analysis.interventions import intervene
from quietformer.architectures.task import task_of
from quietformer.config.recipe import TeacherRecipe
from quietformer.errors import QuietformerWarning
from quietformer.models.origin import sentence_folder_of
from quietformer.models.pooling import MEAN, pooling_of
from quietformer.training.distillation_loss import distillation_loss
from tests.training.recipes import write_prose

MODES = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "lasttoken": "pooling_mode_lasttoken"}
IDS = torch.arange(3, 31).view(4, 7)
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 6 + [0], [1] * 3 + [0] * 4])
BATCH = {"input_ids": IDS, "attention_mask": MASK}


SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def _publish(folder, mode, place="", model=None):
    """As sentence encoders are published; early versions keep the model in a subfolder."""
    torch.manual_seed(0)
    model = model or BertModel(BertConfig(**SIZES))
    model.save_pretrained(folder / place)
    (folder / place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    modules = [("Transformer", place), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Normalize")]
    listed = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
              for i, (kind, path) in enumerate(modules)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query: "}}))
    for name, content in (("1_Pooling", {MODES[mode]: True}), ("2_Dense", {"in_features": 16})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(content))
    return folder


def _by_hand(states, mode):
    rows = [row[: int(mask.sum())] for row, mask in zip(states, MASK, strict=True)]
    pick = {"cls": lambda row: row[0], "mean": lambda row: row.mean(0), "lasttoken": lambda row: row[-1]}
    return torch.nn.functional.normalize(torch.stack([pick[mode](row) for row in rows]), dim=-1)


def _changed(model):
    """The same but for its last weights, so that embeddings move by other amounts in each token."""
    other = qf.open_model(model.config.name_or_path)
    with torch.no_grad():
        other.encoder.layer[0].output.dense.weight.mul_(3)
    return other


@torch.no_grad()
def _cosine(ours, theirs, mode):
    x, y = (_by_hand(model(**BATCH).last_hidden_state.double(), mode) for model in (ours, theirs))
    return float((x * y).sum(-1).mean())


@pytest.mark.parametrize("mode", MODES)
def test_measurements_and_the_loss_pool_as_the_folder_says(mode, tmp_path):
    model = qf.open_model(_publish(tmp_path / "st", mode))
    other = _changed(model)
    expected = _cosine(other, model, mode)
    found = evaluate(other, [BATCH], "embedding", reference_run(model, [BATCH], "embedding"))
    assert found.measured["cosine"] == pytest.approx(expected, abs=1e-6)
    outputs = [module(**BATCH) for module in (other, model)]
    weights = TeacherRecipe(hidden=0.0, last_hidden=0.0, logits=0.0, pooled=1.0)
    loss = distillation_loss(outputs[0], outputs[1], BATCH, weights, "embedding", pooling_of(model))
    assert loss.item() == pytest.approx(1 - expected, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_interventions_are_measured_on_the_embeddings_of_the_folder(mode, tmp_path):
    """Against the same model, whose first value of every sequence is set to zero by hand."""
    spread = BertModel(BertConfig(**SIZES, initializer_range=0.5))
    model = qf.open_model(_publish(tmp_path / "st", mode, model=spread))
    report = qf.inspect_model(model, [BATCH])
    (found,) = [row for row in intervene(model, [BATCH], report) if row.what.startswith("values of the first token")]
    other = qf.open_model(tmp_path / "st")

    def zeroed(module, args, output):
        changed = output.clone()
        changed[:, 0] = 0.0
        return changed

    other.encoder.layer[0].attention.self.value.register_forward_hook(zeroed)
    assert found.after == pytest.approx(1 - _cosine(other, model, mode), abs=1e-5)
    assert found.after > 1e-3


def _embedder(kind):
    """Models whose config names a head: a decoder with a head tied to its embeddings, and an encoder with all of its head."""
    torch.manual_seed(0)
    if kind == "tied":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True))
    return RobertaForMaskedLM(RobertaConfig(**SIZES, max_position_embeddings=40))


@pytest.mark.parametrize("kind", ["tied", "whole head"])
def test_a_sentence_folder_is_opened_as_what_it_pools(kind, tmp_path):
    """Or Qwen3-Embedding would be measured by its perplexity, and its pooling never used."""
    model = _embedder(kind).eval()
    folder = _publish(tmp_path / "st", "lasttoken", model=model)
    if kind == "tied":  # its weights are published under the names of the base model
        model.base_model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3ForCausalLM"]}))
    with pytest.warns(QuietformerWarning, match=f"opened without the head of {type(model).__name__}"):
        opened = qf.open_model(folder)
    assert isinstance(opened, type(model.base_model))
    assert task_of(opened) == "embedding"
    with torch.no_grad():
        states = model.base_model(**BATCH).last_hidden_state
        torch.testing.assert_close(opened(**BATCH).last_hidden_state, states)
    assert pooling_of(opened).settings.pooling == ("lasttoken",)
    (folder / "modules.json").unlink()
    assert isinstance(qf.open_model(folder), type(model))


CHANGES = {
    "convert": ("--gate", "linear"),
    "quantize": ("--sequences", 4, "--calibration", 1, "--seeds", 1, "--length", 16),
    "retrofit": (
        "--sequences",
        8,
        "--seeds",
        1,
        "--length",
        16,
        "--steps",
        1,
        "--batch-size",
        2,
        "--force",
        "--no-real",
    ),
}


@pytest.mark.parametrize("command", CHANGES)
def test_every_command_that_writes_a_model_keeps_the_sentence_folder(command, run, sentence_encoder, tmp_path):
    write_prose(tmp_path / "text.txt")
    out = (
        ("--out", tmp_path / "out", "--page", tmp_path / "page.html") if command == "quantize" else (tmp_path / "out",)
    )
    texts = () if command == "convert" else ("--texts", tmp_path / "text.txt")
    code, _, error = run(command, sentence_encoder, *out, *texts, *CHANGES[command])
    assert code == 0, error
    expected = sentence_folder_of(sentence_encoder)[1]
    assert expected.pooling == ("cls",)
    assert expected.prompts
    assert sentence_folder_of(tmp_path / "out")[1] == expected
    assert pooling_of(qf.open_model(tmp_path / "out")).settings == expected


def test_any_other_model_is_pooled_by_the_mean(tmp_path):
    folder = _publish(tmp_path / "st", "cls")
    (folder / "modules.json").unlink()
    assert pooling_of(qf.open_model(folder)) == MEAN


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_a_saved_folder_keeps_all_of_it_with_the_model_at_the_top(place, tmp_path):
    model = qf.open_model(_publish(tmp_path / "st", "cls", place))
    qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.Softmax1()))
    qf.save(model, tmp_path / "saved")
    shutil.rmtree(tmp_path / "st")
    loaded = qf.open_model(tmp_path / "saved")
    settings = sentence_folder_of(tmp_path / "saved")[1]
    assert pooling_of(loaded).settings == settings
    assert (settings.pooling, settings.max_seq_length, settings.normalize) == (("cls",), 32, True)
    assert (settings.prompts, settings.transformer, settings.other_modules) == ({"query": "query: "}, "", ("Dense",))
    assert json.loads((tmp_path / "saved" / "2_Dense" / "config.json").read_text()) == {"in_features": 16}


def test_saving_over_a_sentence_folder_leaves_none_of_the_old_one(tmp_path):
    model = qf.open_model(_publish(tmp_path / "st", "cls"))
    qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.Softmax1()))
    qf.save(model, tmp_path / "saved")
    model.config.name_or_path = ""
    qf.save(model, tmp_path / "saved")
    assert pooling_of(qf.open_model(tmp_path / "saved")) == MEAN


def test_links_out_of_the_folder_and_pipes_are_not_taken_along(tmp_path):
    folder = _publish(tmp_path / "st", "cls")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("secret")
    (folder / "2_Dense" / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "2_Dense" / "loop").symlink_to(folder)
    os.mkfifo(folder / "2_Dense" / "pipe")
    model = qf.open_model(folder)
    qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.Softmax1()))
    qf.save(model, tmp_path / "saved")
    assert [path.name for path in (tmp_path / "saved" / "2_Dense").iterdir()] == ["config.json"]
