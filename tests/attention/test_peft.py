"""LoRA on a gated model: one config trains the gates as well, and without it frozen gates are told."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import quietformer as qf
from quietformer.errors import QuietformerWarning

GIVEN = {"input_ids": torch.arange(14).view(2, 7), "labels": torch.tensor([0, 1])}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}


def _gated():
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SIZES))
    qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate()))
    return model


def _adapted(model, **fields):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["query", "value"], exclude_modules=r".*\.taps\..*", **fields)
    return peft.get_peft_model(model, config)


def _step(model):
    model.train()
    model(**GIVEN).loss.backward()
    torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=1.0).step()


@torch.no_grad()
def _logits(model):
    return model.eval()(GIVEN["input_ids"]).logits


def test_gates_train_with_lora_and_come_back_with_the_adapter(tmp_path):
    from_pretrained = pytest.importorskip("peft").PeftModel.from_pretrained
    qf.save(_gated(), tmp_path / "base")
    model = _adapted(qf.load(tmp_path / "base"), modules_to_save=["gating"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", QuietformerWarning)
        _step(model)
    before, after = ({name.replace("modules_to_save.default.", ""): tensor for name, tensor in one.state_dict().items()}
                     for one in (_gated(), model.base_model.model))  # fmt: skip
    gates = [name for name in before if ".gating." in name]
    assert gates
    assert not any(torch.equal(before[name], after[name]) for name in gates)
    model.save_pretrained(tmp_path / "adapter")
    assert torch.equal(_logits(from_pretrained(qf.load(tmp_path / "base"), tmp_path / "adapter")), _logits(model))
    expected, merged = _logits(model), model.merge_and_unload()
    qf.save(merged, tmp_path / "merged")
    torch.testing.assert_close(_logits(qf.load(tmp_path / "merged")), expected, rtol=0, atol=1e-6)


def test_gates_that_lora_freezes_are_told():
    model = _adapted(_gated())
    with pytest.warns(QuietformerWarning, match=r"gates of this model are frozen.*modules_to_save=\['gating'\]"):
        _step(model)


def test_gates_that_are_frozen_by_hand_are_told_in_training_only():
    model = _gated()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".gating." not in name)
    with pytest.warns(QuietformerWarning, match="gates of this model are frozen"):
        _step(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", QuietformerWarning)
        _logits(model)
        model.eval()(**GIVEN).loss.backward()
