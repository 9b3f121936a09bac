"""Bias correction: the mean of an output is again what it was in fp32."""

from __future__ import annotations

import torch

import quietformer as qf
from quietformer.quant.bias_correction import correct_biases_
from quietformer.quant.calibration import full_precision, set_mode_
from quietformer.quant.insertion import quantizers
from tests.tiny_models import build, inputs


def test_the_mean_output_of_a_layer_is_that_of_fp32():
    model, given = build("bert"), inputs("bert")
    layer = model.bert.encoder.layer[0].attention.self.query
    name = "bert.encoder.layer.0.attention.self.query"
    qf.quantize_(model, qf.QuantSpec(placement="linear", weight_bits=3, activation_bits=3), given)
    qf.calibrate_(model, [given])

    def mean_output():
        seen = []
        handle = layer.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
        with torch.no_grad():
            model(**given)
        handle.remove()
        return seen[0].double().mean((0, 1))

    with full_precision(model):
        exact = mean_output()
    # Only this layer is quantized, so that its input is that of fp32.
    set_mode_(model, "pass", set(quantizers(model)) - {f"{name}:weight", f"{name}:input"})
    before = (mean_output() - exact).abs().max()
    count = correct_biases_(model, [given])
    after = (mean_output() - exact).abs().max()
    assert count == sum(site.endswith(":input") for site in quantizers(model))
    assert before > 1e-3
    assert after < 1e-5


def test_the_modes_of_quantizers_stay():
    model, given = build("opt"), inputs("opt")
    qf.quantize_(model, qf.QuantSpec(placement="matmul"), given)
    qf.calibrate_(model, [given])
    set_mode_(model, "pass", [next(iter(quantizers(model)))])
    before = [quantizer.mode for quantizer in quantizers(model).values()]
    correct_biases_(model, [given])
    assert [quantizer.mode for quantizer in quantizers(model).values()] == before
