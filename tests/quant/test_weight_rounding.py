"""Weight rounding with compensation: on the grid, and with less error in the output than rounding to the nearest."""

from __future__ import annotations

import pytest
import torch

import quietformer as qf
from quietformer.quant.calibration import full_precision
from quietformer.quant.insertion import quantizers, weight_of
from quietformer.quant.quantizer import Grid, Quantizer
from quietformer.quant.weight_rounding import compensated, round_weights_
from tests.tiny_models import build, inputs


def quantizer_of(weight, bits):
    quantizer = Quantizer("layer:weight", Grid(bits, True, 0), len(weight))
    quantizer.set_range_(weight.amin(1), weight.amax(1))
    return quantizer


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("features", [40, 300])  # fewer and more than a block of channels
def test_the_output_loses_less_than_by_rounding_to_the_nearest(bits, features):
    generator = torch.Generator().manual_seed(bits)
    mixing = torch.randn(features, features, generator=generator, dtype=torch.float64)
    rows = (torch.randn(4 * features, features, generator=generator, dtype=torch.float64) @ mixing).float()
    weight = torch.randn(16, features, generator=generator)
    quantizer = quantizer_of(weight, bits)
    found = compensated(weight, rows.T @ rows, quantizer)
    exact = rows.double() @ weight.double().T

    def lost(one):
        return float((rows.double() @ one.double().T - exact).square().mean())

    assert lost(found) < lost(quantizer.rounded(weight))
    assert torch.equal(quantizer.rounded(found), found)


def test_a_channel_that_is_never_used_breaks_nothing():
    weight = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    products = torch.eye(12)
    products[3, 3] = 0
    found = compensated(weight, products, quantizer_of(weight, 8))
    assert found.isfinite().all()


def test_a_model_keeps_its_grids_and_only_linear_weights_change():
    model, given = build("bert"), inputs("bert")
    qf.quantize_(model, qf.QuantSpec(per_channel=True, placement="matmul", weight_bits=4), given)
    qf.calibrate_(model, [given])
    scales = {site: quantizer.scale.clone() for site, quantizer in quantizers(model).items()}
    before = {name: value.clone() for name, value in model.named_parameters()}
    count = round_weights_(model, [given])
    linears = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    rounded = {site.partition(":")[0] for site in scales if site.endswith(":weight")} & linears
    assert count == len(rounded) > 0
    assert all(torch.equal(quantizer.scale, scales[site]) for site, quantizer in quantizers(model).items())
    changed = {
        name.removesuffix(".weight") for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    assert changed == rounded
    for name in rounded:
        weight = weight_of(model, f"{name}:weight")
        assert torch.equal(quantizers(model)[f"{name}:weight"].rounded(weight), weight)
    with full_precision(model), torch.no_grad():
        assert model(**given).logits.isfinite().all()
