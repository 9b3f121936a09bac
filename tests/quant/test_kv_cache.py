"""Keys and values as a cache holds them: their scales, and that they are the same whether a cache is used or not."""

from __future__ import annotations

import pytest
import torch

import quietformer as qf
from quietformer.quant.insertion import quantizers
from quietformer.quant.quantizer import Grid
from tests.tiny_models import build, inputs

LAYER = "model.layers.0.self_attn"


def cached(kind, **spec):
    model = build("llama")
    given = {"placement": "linear", "per_channel": True, "kv_cache": kind} | spec
    plan = qf.quantize_(model, qf.QuantSpec(**given), inputs("llama"))
    qf.calibrate_(model, [inputs("llama")])
    return model, plan


def passing(model, tap):
    """What the core gets and what it makes of it."""
    found = {}
    core = dict(qf.attention_cores(model))[LAYER]
    core.taps[tap].register_forward_hook(lambda _, args, output: found.update(given=args[0], made=output))
    with torch.no_grad():
        model(**inputs("llama"))
    return found["given"], found["made"]


def rounded(x, low, high, levels=255):
    """The nearest values of a grid that covers zero and the range, in float64."""
    low, high = low.double().clamp(max=0), high.double().clamp(min=0)
    step = (high - low) / levels
    zero = torch.round(-low / step)
    return (((x.double() / step).round() + zero).clamp(0, levels) - zero) * step


@pytest.mark.parametrize("tap", ["key", "value"])
def test_every_feature_of_every_head_has_a_scale_of_its_own(tap):
    model, plan = cached("channel", rules=("*:weight", "*:input"))  # nothing else changes what it is calibrated on
    (site,) = [site for site in plan.sites if site.name == f"{LAYER}:{tap}"]
    assert str(site.grid) == "u8@2x8"
    given, made = passing(model, tap)
    expected = rounded(given, given.amin((0, 2), keepdim=True), given.amax((0, 2), keepdim=True))
    torch.testing.assert_close(made.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tap", ["key", "value"])
def test_every_token_of_every_head_has_a_scale_of_its_own(tap):
    model, plan = cached("token")
    assert [str(site.grid) for site in plan.sites if site.name == f"{LAYER}:{tap}"] == ["s8@token"]
    given, made = passing(model, tap)
    step = given.double().abs().amax(-1, keepdim=True) / 127
    torch.testing.assert_close(made.double(), (given.double() / step).round() * step, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["tensor", "token", "channel"])
def test_generating_with_a_cache_gives_what_is_generated_without(kind):
    model, _ = cached(kind)
    told = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    batch = inputs("llama")
    assert torch.equal(model.generate(**batch, **told), model.generate(**batch, **told, use_cache=False))


@pytest.mark.parametrize("kind", ["tensor", "token", "channel"])
def test_it_is_saved_and_restored(kind, tmp_path):
    model, _ = cached(kind)
    qf.save(model, tmp_path / "model")
    loaded = qf.load(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(loaded(**inputs("llama")).logits, model(**inputs("llama")).logits)
    assert {site: q.grid for site, q in quantizers(loaded).items()} == {
        site: q.grid for site, q in quantizers(model).items()
    }


def test_a_placement_that_quantizes_keys_and_values_gets_the_scales_of_the_cache():
    _, plan = cached("channel", placement="matmul")
    grids = {site.name: site.grid for site in plan.sites}
    assert grids[f"{LAYER}:key"].heads == grids[f"{LAYER}:value"].heads == (2, 8)
    assert grids[f"{LAYER}:query"].heads is None


def test_grids_of_heads_are_written_and_read():
    for code in ("u8@3x64", "s4@12x128"):
        assert str(Grid.parse(code)) == code
    for code in ("u8@x64", "u8@3x", "u8@3x64x1"):
        with pytest.raises(qf.QuietformerError, match="cannot read grid"):
            Grid.parse(code)
