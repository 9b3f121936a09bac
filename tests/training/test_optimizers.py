"""Muon beside AdamW, and norms with one scale: what they compute, and that they resume."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import quietformer as qf
from quietformer.attention.find_layers import CORE
from quietformer.config.optimization import MUON, OptimizerRecipe
from quietformer.config.recipe import Recipe
from quietformer.errors import SpecError
from quietformer.training import trainer
from quietformer.training.optimizers import MuonAndAdamW, Rates, block_matrices, is_norm, parameter_groups, tie_gains_
from quietformer.training.regularizers import Tweo
from quietformer.training.run import train
from tests.tiny_models import VARIANTS, build, inputs
from tests.training.recipes import tiny, tiny_recipe, write_prose

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64,
}  # fmt: skip
MIXED = {"optimizer": {"name": MUON, "single_scale_norms": True, "gate_factor": 2.0}, "regularizers": ["tweo"]}


def adamw(groups):
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def muon_for(model, **fields):
    recipe = OptimizerRecipe(name=MUON, learning_rate=1e-2, weight_decay=0.1, **fields)
    decayed = frozenset(name for name, parameter in model.named_parameters() if parameter.dim() > 1)
    groups = parameter_groups(model, Rates(recipe, decayed, block_matrices(model)))
    return MuonAndAdamW(groups, adamw)


@pytest.mark.parametrize("name", ["bert", "opt", "llama", "gpt2", "vit"])
def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else(name):
    model = build(name)
    qf.apply_attention_(model, VARIANTS["gate-all_heads"])
    taken = block_matrices(model)
    names = {key: parameter for key, parameter in model.named_parameters()}
    for key, parameter in names.items():
        inside = any(f".{number}." in key for number in range(2)) and parameter.dim() == 2 and CORE not in key
        assert (id(parameter) in taken) == inside, key
    made = muon_for(model)
    grouped = {id(p): group[MUON] for group in made.param_groups for p in group["params"]}
    assert grouped == {id(parameter): id(parameter) in taken for parameter in names.values()}


def test_one_step_is_torchs_muon_and_torchs_adamw():
    model = build("llama")
    model(**inputs("llama")).logits.square().mean().backward()
    other = copy.deepcopy(model)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        theirs.grad = ours.grad.clone()
    muon_for(model).step()
    matrices = block_matrices(other)
    taken, rest = [], []
    for parameter in other.parameters():
        (taken if id(parameter) in matrices else rest).append(parameter)
    torch.optim.Muon(taken, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
    adamw(
        [
            {"params": [p for p in rest if (p.dim() > 1) is wide], "lr": 1e-2, "weight_decay": 0.1 * wide}
            for wide in (True, False)
        ]
    ).step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_muons_step_is_an_orthogonal_matrix_of_adamws_size():
    """Against a singular value decomposition: all directions of the first step are alike, to Newton-Schulz's accuracy."""
    layer = nn.Linear(48, 16, bias=False)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn(16, 48)
    made = MuonAndAdamW(
        [
            {"params": [layer.weight], "lr": 1.0, "weight_decay": 0.0, MUON: True},
            {"params": [nn.Parameter(torch.zeros(1))], "lr": 1.0, "weight_decay": 0.0, MUON: False},
        ],
        adamw,
    )
    made.step()
    sizes = torch.linalg.svdvals(before - layer.weight.detach()) / (0.2 * 48**0.5)
    assert 0.6 < float(sizes.min()) <= float(sizes.max()) < 1.3


def test_a_schedule_and_a_saved_state_reach_both_parts():
    model = build("llama")
    made = muon_for(model)

    def step():
        model.zero_grad()
        model(**inputs("llama")).logits.square().mean().backward()
        made.step()

    step()
    saved, weights = copy.deepcopy(made.state_dict()), copy.deepcopy(model.state_dict())
    step()
    expected = copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    made = muon_for(model)
    made.load_state_dict(saved)
    step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    for group in made.param_groups:
        group["lr"] = 0.0
    step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_tied_gains_stay_equal_and_move_as_one_scale_would():
    class OneScale(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.scale, self.width = nn.Parameter(torch.ones(())), width

        def forward(self, x):
            return nn.functional.rms_norm(x, (self.width,), eps=1e-6) * self.scale

    torch.manual_seed(0)
    tied, single = nn.RMSNorm(16, eps=1e-6), OneScale(16)
    stop = tie_gains_(tied)
    optimizers = [torch.optim.AdamW(part.parameters(), lr=0.05) for part in (tied, single)]
    for _ in range(5):
        x, wanted = torch.randn(4, 16), torch.randn(4, 16)
        norms = []
        for part, optimizer in zip((tied, single), optimizers, strict=True):
            optimizer.zero_grad()
            (part(x) - wanted).square().sum().backward()
            norms.append(torch.stack([p.grad.norm() for p in part.parameters()]).norm())
            optimizer.step()
        torch.testing.assert_close(norms[0], norms[1])
        torch.testing.assert_close(tied.weight, single.scale.expand(16))
    stop()
    tied(torch.randn(4, 16)).square().mean().backward()
    assert float(tied.weight.grad.std()) > 0


@pytest.mark.parametrize("task", ["masked", "causal"])
def test_a_run_with_muon_one_scale_and_tweo_resumes_where_it_stopped(tmp_path, monkeypatch, task):
    text = write_prose(tmp_path / "text.txt")
    model = {"config": LLAMA} if task == "causal" else {}
    recipe = Recipe(**tiny(task, text, attention={"gate": "linear(pi_init=0.5)"}, model=model, **MIXED))
    train(recipe, tmp_path / "whole")
    publish = trainer.publish

    def stopping(run, name):
        publish(run, name)
        if name == "checkpoint-8":
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "publish", stopping)
        with pytest.raises(BaseException):  # noqa: B017  however the stop is told
            train(recipe, tmp_path / "part")
    assert (tmp_path / "part" / "checkpoints" / "checkpoint-8").is_dir()
    train(recipe, tmp_path / "part")
    one, other = (qf.load(str(tmp_path / run)) for run in ("whole", "part"))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    gains = [m.weight for m in one.modules() if is_norm(m) and getattr(m, "weight", None) is not None]
    assert gains
    for gain in gains:
        torch.testing.assert_close(gain, gain.mean().expand_as(gain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"name": MUON}, "trainer": {"fsdp": "full_shard"}}, "name: muon does not run on a sharded"),
        (
            {"optimizer": {"single_scale_norms": True}, "trainer": {"fsdp": "full_shard"}},
            "single_scale_norms does not run",
        ),
        (
            {"optimizer": {"single_scale_norms": True}, "model": {"pretrained": "minilm", "config": {}}},
            "starts from nothing",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, changes, message):
    with pytest.raises(SpecError, match=message):
        tiny_recipe("masked", tmp_path / "text.txt", **changes)


def test_the_tweo_loss_is_its_formula():
    model, seen = build("llama").train(), []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, output: seen.append(output.detach().double()))
    attached = Tweo(strength=0.02, threshold=2.0, power=3.0).build(model)
    model(**inputs("llama"))
    expected = sum((x.abs() / 2).pow(3).mean() for x in seen) / len(seen)
    assert float(attached.term().detach()) == pytest.approx(0.02 * float(expected), rel=1e-5)
