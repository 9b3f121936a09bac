"""Folders as others publish them: without a head, without a pooler, or with pickled weights; never with random numbers."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    MPNetConfig,
    MPNetForMaskedLM,
    OPTForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    ViTForImageClassification,
)

import quietformer as qf
from quietformer.errors import QuietformerError, QuietformerWarning
from tests.tiny_models import build, inputs

SIZES = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip
MADE = {
    "mpnet": lambda: MPNetForMaskedLM(MPNetConfig(**SIZES)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SIZES)),
    "albert": lambda: AlbertForMaskedLM(AlbertConfig(**SIZES, embedding_size=16)),
    "classifier": lambda: BertForSequenceClassification(BertConfig(**SIZES)),
    "vit": lambda: build("vit"),
}


def _given(model):
    if isinstance(model, ViTForImageClassification):
        return inputs("vit")
    return {"input_ids": torch.arange(3, 21).view(2, 9)}


@torch.no_grad()
def _states(model, given):
    return model.eval()(**given).last_hidden_state


def _publish_without_head(model, folder):
    """As sentence encoders are published: the weights of the base model under its own names, the config of another class."""
    model.save_pretrained(folder)
    base = model.base_model
    base.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", MADE)
def test_weights_without_a_head_open_as_the_base_model(name, tmp_path):
    model = MADE[name]()
    _publish_without_head(model, tmp_path)
    with pytest.warns(QuietformerWarning, match=f"names {type(model).__name__}, but its weights have no head"):
        opened = qf.open_model(tmp_path)
    assert isinstance(opened, type(model.base_model))
    torch.testing.assert_close(_states(opened, _given(model)), _states(model.base_model, _given(model)))


def test_a_head_of_which_a_part_is_left_is_damage(tmp_path):
    MADE["mpnet"]().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(QuietformerError, match=r"lm_head\.dense\.weight"):
        qf.open_model(tmp_path)


def test_a_base_model_of_which_a_part_is_left_is_damage_too(tmp_path):
    _publish_without_head(MADE["mpnet"](), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(QuietformerError, match="would be random numbers"):
        qf.open_model(tmp_path)


def test_weights_without_a_pooler_open_without_one_and_are_saved_so(tmp_path):
    model = BertModel(BertConfig(**SIZES), add_pooling_layer=False)
    model.save_pretrained(tmp_path / "plain")
    opened = qf.open_model(tmp_path / "plain")
    assert opened.pooler is None
    qf.apply_attention_(opened, qf.AttentionSpec(normalizer=qf.Softmax1()))
    qf.save(opened, tmp_path / "ours")
    loaded = qf.load(tmp_path / "ours")
    assert torch.equal(_states(loaded, _given(model)), _states(opened, _given(model)))


@pytest.mark.parametrize("gated", [False, True])
def test_a_config_that_asks_for_tuples_changes_nothing(tmp_path, gated):
    """Outputs are read by name; of a tuple, the first would be taken for the last hidden state."""
    model = build("bert")
    if gated:
        qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate()))
        qf.save(model, tmp_path)
    else:
        model.save_pretrained(tmp_path)
    right = qf.open_model(tmp_path)(**_given(model)).logits
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"return_dict": False}))
    assert torch.equal(qf.open_model(tmp_path)(**_given(model)).logits, right)


def test_convert_makes_safetensors_of_pickled_weights(tmp_path, run):
    model = build("opt")
    model.config.architectures = ["OPTForCausalLM"]
    model.config.save_pretrained(tmp_path / "pickled")
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(QuietformerError, match=r"quietformer convert .*pickled OUT"):
        qf.open_model(tmp_path / "pickled")
    code, out, errors = run("convert", tmp_path / "pickled", tmp_path / "safe")
    assert code == 0, errors
    assert "safetensors" in out
    safe = OPTForCausalLM.from_pretrained(tmp_path / "safe", use_safetensors=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(safe.state_dict()[name], tensor), name
    code, _, errors = run("convert", tmp_path / "pickled", tmp_path / "gated", "--gate", "linear")
    assert code == 0, errors
    assert any("gating" in name for name in qf.load(tmp_path / "gated").state_dict())
