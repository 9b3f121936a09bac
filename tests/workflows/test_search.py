"""The search keeps what lowers the error, says what each step brought, and leaves the model it was given alone."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

import quietformer as qf
from quietformer.config.quantization import estimators
from quietformer.config.recorded_changes import changes_of
from quietformer.data.calibration_data import CalibrationData
from quietformer.progress import SILENT
from quietformer.quant.affine import fake_quantize, qparams
from quietformer.quant.insertion import quantizers, weight_of
from quietformer.quant.sensitivity import observe_tensors
from quietformer.results.data import DataInfo
from quietformer.transforms.channel_ranges import smoothing
from quietformer.transforms.smoothquant import MIGRATION
from quietformer.workflows.ranges_by_tensor import proposals
from quietformer.workflows.search import LEAST, PASSES, Search
from quietformer.workflows.smoothing_exponent import EXPONENTS, least_error_exponent
from tests.tiny_models import build, inputs


def data_of(name):
    def batches(seed):
        return [inputs(name)] * 2

    return CalibrationData(batches(0), batches, None, DataInfo(source="tests", sequences=2))


def with_outliers(name="bert"):
    """Two features of what the FFN reads are a hundred times the others."""
    model = build(name)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight[:2] *= 100
    return model


@pytest.mark.parametrize("placement", ["matmul", "linear", "paper"])
def test_every_kept_step_lowers_the_error(placement):
    model = with_outliers()
    before = copy.deepcopy(model.state_dict())
    spec = qf.QuantSpec(placement=placement, per_channel=True)
    found = Search(model, data_of("bert"), spec, SILENT).run(seconds=600, ranges=True)
    kept = [step.error for step in found.steps if step.kept]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < kept[0]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not quantizers(model)
    assert all(quantizer.calibrated for quantizer in quantizers(found.model).values())


def test_the_last_error_is_that_of_the_model_it_gives():
    model, data = with_outliers(), data_of("bert")
    search = Search(model, data, qf.QuantSpec(placement="matmul", per_channel=True), SILENT)
    found = search.run(seconds=600, ranges=True)
    given = data.calibration(1)[0]
    with torch.no_grad():
        ours, exact = found.model(**given).logits, model(**given).logits
    mask = (
        given["attention_mask"].bool() if "attention_mask" in given else torch.ones(exact.shape[:2], dtype=torch.bool)
    )
    error = 1 - torch.nn.functional.cosine_similarity(ours[mask].double(), exact[mask].double(), dim=-1).mean()
    assert [step.error for step in found.steps if step.kept][-1] == pytest.approx(float(error), rel=1e-6)


def test_without_time_it_says_what_was_left_out():
    spec = qf.QuantSpec(placement="matmul")
    found = Search(build("bert"), data_of("bert"), spec, SILENT).run(seconds=1e-9, ranges=True)
    assert all(step.error is None and "time" in step.what for step in found.steps[1:])
    assert len(found.steps) > 1


def test_a_slow_model_gets_fewer_batches():
    """As many as the time allows, two at least, and the error is measured on half as many."""
    data = dataclasses.replace(data_of("bert"), calibration=lambda seed: [inputs("bert")] * 20)
    for seconds, batches in ((1e-9, LEAST), (5 * PASSES, 5), (600 * PASSES, 20)):
        search = Search(build("bert"), data, qf.QuantSpec(placement="matmul"), SILENT)
        judges = len(search.judges)
        search.pass_seconds = 1.0
        search._take_what_fits(seconds)
        assert len(search.calibration) == batches
        assert len(search.judges) == len(search.exact) == min(judges, max(1, int(seconds / PASSES) // 2))


def test_the_exponent_is_the_one_with_the_least_error():
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(200, 16, generator=generator)
    sample[:, 3] *= 50
    weights = [torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)]
    largest = sample.abs().amax(0)

    def error(exponent):
        scale = smoothing(largest, torch.stack([w.abs().amax(1) for w in weights]).amax(0), exponent).float()
        scaled = sample / scale
        rounded = fake_quantize(
            scaled, *qparams(scaled.amin(), scaled.amax(), bits=8, symmetric=False), bits=8, axis=None
        )
        total = 0.0
        for weight in weights:
            turned = (weight * scale[:, None]).T.contiguous()
            on_grid = fake_quantize(
                turned, *qparams(turned.amin(1), turned.amax(1), bits=8, symmetric=True), bits=8, axis=0
            )
            exact = sample.double() @ weight.double()
            lost = (rounded.double() @ on_grid.double().T - exact).square().sum(1)
            total += float((lost / exact.square().sum(1)).mean())
        return total

    chosen = least_error_exponent(qf.QuantSpec(per_channel=True))(sample, largest, weights)
    assert chosen == min(EXPONENTS, key=error)


def test_attention_is_judged_first_so_that_its_error_hides_no_other_step():
    spec = qf.QuantSpec(placement="matmul", per_channel=True)
    found = Search(with_outliers(), data_of("bert"), spec, SILENT).run(seconds=600, ranges=True)
    names = [step.name for step in found.steps]
    assert names.index("attention") < names.index("smoothing") < names.index("weight rounding")


def test_attention_is_judged_again_after_smoothing_if_it_was_not_worth_it_before(monkeypatch):
    monkeypatch.setattr("quietformer.workflows.search.WORTH", 0.0)  # nothing is
    spec = qf.QuantSpec(placement="matmul", per_channel=True)
    found = Search(with_outliers(), data_of("bert"), spec, SILENT).run(seconds=600, ranges=False)
    tried = [step for step in found.steps if step.name in ("attention", "smoothing")]
    assert [step.name for step in tried] == ["attention", "smoothing", "attention"]
    assert [step.kept for step in tried] == [False, True, False]
    assert tried[2].error < tried[0].error


@pytest.mark.parametrize("spec", [{"placement": "paper"}, {"placement": "matmul", "activation_bits": 4}])
def test_a_tensor_may_get_a_range_of_its_own(spec):
    search = Search(with_outliers(), data_of("bert"), qf.QuantSpec(per_channel=True, **spec), SILENT)
    found = search.run(seconds=600, ranges=True)
    (step,) = [step for step in found.steps if step.name == "ranges by tensor"]
    assert step.kept == (step.error < min(one.error for one in found.steps if one.kept and one.name != step.name))
    assert search._measure() == pytest.approx(min(one.error for one in found.steps if one.kept))


def test_a_range_is_proposed_where_tokens_lose_less_on_average():
    model, given = build("bert"), inputs("bert")
    qf.quantize_(model, qf.QuantSpec(placement="linear"), given)
    qf.calibrate_(model, [given])
    placed = {site: quantizer for site, quantizer in quantizers(model).items() if site.endswith(":input")}
    seen = {}

    class Keeps:
        def __init__(self, site):
            self.site = site

        def observe(self, x):
            seen[self.site] = x.double()

    observe_tensors(model, {site: Keeps(site) for site in placed}, [given])

    def error(x, lo, hi):
        scale = (hi - lo) / 255
        zero = np.round(-lo / scale)
        rounded = (np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale
        return float((((rounded - x) ** 2).sum(-1) / (x**2).sum(-1)).mean())

    candidates, expected = {"half": {}, "double": {}}, set()
    for site, quantizer in placed.items():
        lo, hi = (float(end) for end in quantizer.range())
        x = seen[site].numpy()
        errors = {"now": error(x, lo, hi)}
        for name, share in (("half", 0.5), ("double", 2.0)):
            scale, zero_point = qparams(torch.tensor(share * lo), torch.tensor(share * hi), bits=8, symmetric=False)
            candidates[name][site] = scale.view(torch.int32), zero_point
            errors[name] = error(x, share * lo, share * hi)
        best = min(errors, key=errors.__getitem__)
        if best != "now" and errors[best] < 0.9 * errors["now"]:
            expected.add((site, best))
    found = proposals(model, candidates, [given])
    assert expected <= {(one.site, one.name) for one in found}
    assert all(one.name == "half" for one in found)  # a wider grid is coarser and clips nothing less
    assert [one.left for one in found] == sorted(one.left for one in found)


@pytest.mark.parametrize("bits", [4, 8])
def test_ranges_of_activations_leave_rounded_weights_on_their_grids(bits):
    spec = qf.QuantSpec(placement="matmul", per_channel=True, activation_bits=bits)
    found = Search(with_outliers(), data_of("bert"), spec, SILENT).run(seconds=600, ranges=True)
    kept = {step.name for step in found.steps if step.kept}
    assert "weight rounding" in kept
    placed = quantizers(found.model)
    for name, module in found.model.named_modules():
        if isinstance(module, torch.nn.Linear) and f"{name}:weight" in placed:
            assert torch.equal(placed[f"{name}:weight"].rounded(module.weight), module.weight), name


def causal_steps(monkeypatch, tokens, **spec):
    monkeypatch.setattr("quietformer.workflows.search.find_prefix", lambda model, batches: tokens)
    model = build("llama")
    return model, Search(model, data_of("llama"), qf.QuantSpec(placement="matmul", **spec), SILENT)


def test_causal_models_are_also_searched_for_a_prefix_a_rotation_and_scales_per_token(monkeypatch):
    monkeypatch.setattr("quietformer.workflows.search.WORSE", 100.0)
    model, search = causal_steps(monkeypatch, (5, 9))
    found = search.run(seconds=600, ranges=False, per_token=True)
    names = [step.name for step in found.steps]
    assert names[:3] == ["start", "prefix", "rotation"]
    assert "per token" in names
    assert changes_of(model).prefix is None
    kept = {step.name for step in found.steps if step.kept}
    assert (changes_of(found.model).prefix is not None) == ("prefix" in kept)
    assert (found.plan.spec.granularity == "token") == ("per token" in kept)


def test_a_prefix_that_makes_the_text_less_likely_is_dropped(monkeypatch):
    monkeypatch.setattr("quietformer.workflows.search.WORSE", 0.0)
    _, search = causal_steps(monkeypatch, (5,))
    found = search.run(seconds=600, ranges=False)
    (step,) = [step for step in found.steps if step.name == "prefix"]
    assert not step.kept
    assert "raise the loss" in step.what
    assert changes_of(found.model).prefix is None


def test_with_a_prefix_the_error_is_to_the_model_with_it(monkeypatch):
    monkeypatch.setattr("quietformer.workflows.search.WORSE", 100.0)
    monkeypatch.setattr(Search, "_measure", lambda self: 1.0 if changes_of(self.model).prefix is None else 0.5)
    model, search = causal_steps(monkeypatch, (5, 9))
    search.run(seconds=600, ranges=False)
    given = search.judges[0]
    with torch.no_grad():
        front = torch.tensor([[5, 9]]).expand(len(given["input_ids"]), -1)
        mask = torch.cat([torch.ones_like(front), given["attention_mask"]], 1)
        behind = model(input_ids=torch.cat([front, given["input_ids"]], 1), attention_mask=mask).logits[:, 2:]
    torch.testing.assert_close(search.exact[0], behind[given["attention_mask"].bool()], rtol=1e-4, atol=1e-4)


def test_weights_of_few_bits_get_the_range_of_least_error_and_activations_keep_theirs():
    model, data = with_outliers(), data_of("bert")
    search = Search(model, data, qf.QuantSpec(placement="matmul", per_channel=True, weight_bits=3), SILENT)
    found = search.run(seconds=600, ranges=False)
    assert "weight ranges" in [step.name for step in found.steps]
    search.model, search.plan = search._quantized(copy.deepcopy(model))
    before, activations = weight_errors(search.model), activation_scales(search.model)
    search.error = float("inf")
    search._weight_ranges()
    assert search.plan.spec.weights == changes_of(search.model).quantized.spec.weights == estimators["mse"]()
    after = weight_errors(search.model)
    assert all(after[site] <= before[site] for site in before)
    assert sum(after.values()) < sum(before.values())
    assert activation_scales(search.model) == activations


@pytest.mark.parametrize("spec", [{"weight_bits": 8}, {"weight_bits": 4, "weights": "percentile"}])
def test_weight_ranges_are_left_alone_with_many_bits_or_if_they_were_asked_for(spec):
    search = Search(with_outliers(), data_of("bert"), qf.QuantSpec(placement="matmul", **spec), SILENT)
    assert "weight ranges" not in [step.name for step in search.run(seconds=600, ranges=False).steps]


def weight_errors(model):
    """What rounding takes from every weight."""
    weights = {site: weight_of(model, site).detach() for site in quantizers(model) if site.endswith(":weight")}
    return {
        site: float((quantizers(model)[site].rounded(weight) - weight).square().sum())
        for site, weight in weights.items()
    }


def activation_scales(model):
    return {
        site: (quantizer.scale.tolist(), quantizer.zero_point.tolist())
        for site, quantizer in quantizers(model).items()
        if not site.endswith(":weight")
    }


def test_the_error_may_be_that_to_another_model():
    """A healed model is compared with what it was healed from."""
    original, data = build("bert"), data_of("bert")
    healed = copy.deepcopy(original)
    with torch.no_grad():
        for parameter in healed.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    spec = qf.QuantSpec(placement="paper", per_channel=True, activation_bits=16, weight_bits=16)
    itself, other = (Search(healed, data, spec, SILENT, target) for target in (None, original))
    errors = [search.run(seconds=600, ranges=False).steps[0].error for search in (itself, other)]
    given = data.calibration(1)[0]
    with torch.no_grad():
        ours, exact = (model(**given).logits.double() for model in (healed, original))
    apart = 1 - torch.nn.functional.cosine_similarity(ours, exact, dim=-1).mean()
    assert errors[0] < errors[1]
    assert errors[1] == pytest.approx(float(apart), rel=1e-2)


def test_ffns_get_input_scales_of_their_own_where_that_lowers_the_error():
    """Only FFNs: queries, keys and values read the norm as it is."""
    model, data = with_outliers(), data_of("bert")
    search = Search(model, data, qf.QuantSpec(placement="paper", per_channel=True), SILENT)
    found = search.run(seconds=600, ranges=False)
    (step,) = [step for step in found.steps if step.name == "input scales"]
    kept = [one.error for one in found.steps[: found.steps.index(step)] if one.kept]
    assert step.kept == (step.error < min(kept))
    divided = [name for name, module in found.model.named_modules() if hasattr(module, MIGRATION)]
    assert len(divided) == (len(model.bert.encoder.layer) if step.kept else 0)
    assert all(name.endswith("intermediate.dense") for name in divided)
    assert {f"{name}:input" for name in divided} <= set(quantizers(found.model))
