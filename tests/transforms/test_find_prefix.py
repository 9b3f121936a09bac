"""The tokens of a prefix are found where massive activations sit, and only taken if they leave less in the text."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import quietformer as qf
from quietformer.transforms.find_prefix import prefix_trials
from tests.tiny_models import build, inputs

SINK = 17


def with_a_massive_token():
    """A model in which one token has a hundred times the values of others, wherever it stands."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=64, bos_token_id=1,
        )
    ).eval()  # fmt: skip
    ffn = model.model.layers[0].mlp
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 0
        model.model.embed_tokens.weight[SINK, 0] = 3.0
        ffn.gate_proj.weight[0, 0] = ffn.up_proj.weight[0, 0] = 30.0
    return model


def text(places=(5,)):
    ids = torch.randint(20, 99, (2, 12), generator=torch.Generator().manual_seed(1))
    for place in places:
        ids[:, place] = SINK
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bits_lost(model, batch, tokens):
    """Of what linear layers read behind the tokens."""
    seen = []
    linears = [module for name, module in model.named_modules() if name.endswith("_proj")]
    handles = [module.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for module in linears]
    front = torch.tensor(tokens, dtype=torch.long).expand(len(batch["input_ids"]), -1)
    with torch.no_grad():
        model(input_ids=torch.cat([front, batch["input_ids"]], 1))
    for handle in handles:
        handle.remove()
    widest = [x[:, len(tokens) :].abs().amax(-1).flatten() for x in seen]
    return float(torch.stack([(w.max() / w.median()).log2() for w in widest]).mean())


@pytest.mark.parametrize("model", [with_a_massive_token(), build("llama")], ids=["massive", "random"])
def test_each_trial_says_what_is_left_behind_its_tokens(model):
    for trial in prefix_trials(model, [text()]):
        assert trial.bits_lost == pytest.approx(bits_lost(model, text(), trial.tokens), rel=1e-4)


def test_a_token_that_brings_too_little_is_not_taken(monkeypatch):
    model = with_a_massive_token()
    trials = prefix_trials(model, [text()])
    gained = [one.bits_lost - other.bits_lost for one, other in itertools.pairwise(trials)]
    monkeypatch.setattr("quietformer.transforms.find_prefix.WORTH", max(gained, default=0.0) + 1e-3)
    assert qf.find_prefix(model, [text()]) == ()


def test_every_token_taken_brings_something_and_there_are_at_most_so_many():
    model = build("llama")
    for most in (0, 1, 3):
        trials = prefix_trials(model, [inputs("llama")], most=most)
        lost = [trial.bits_lost for trial in trials]
        assert [len(trial.tokens) for trial in trials] == list(range(len(trials)))
        assert len(trials) <= most + 1
        assert lost == sorted(lost, reverse=True)


def test_what_has_no_text_is_refused():
    with pytest.raises(qf.QuietformerError, match="no tokens to find a prefix with"):
        qf.find_prefix(build("llama"), [])
    with pytest.raises(qf.QuietformerError, match="no causal language model"):
        qf.find_prefix(build("vit"), [inputs("vit")])
