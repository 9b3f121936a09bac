"""What a search is judged by: text that it was not calibrated on, and an error that says something of every kind of output."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import quietformer as qf
from quietformer.data.calibration_data import CalibrationData
from quietformer.progress import SILENT
from quietformer.results.data import DataInfo
from quietformer.workflows.search import Search
from quietformer.workflows.search_data import fresh, output_error


def test_text_that_is_masked_elsewhere_is_the_same_text():
    text = torch.arange(10, 26).view(2, 8)
    other = torch.arange(50, 58)[None]

    def masked(ids, place):
        labels = torch.full_like(ids, -100)
        labels[:, place] = ids[:, place]
        given = ids.clone()
        given[:, place] = 3
        return {"input_ids": given, "labels": labels}

    calibration = [masked(text, 1)]
    assert fresh([masked(text, 5)], calibration) == []
    (found,) = fresh([masked(torch.cat([text, other]), 5)], calibration)
    assert torch.equal(found["labels"], masked(other, 5)["labels"])


def test_one_logit_has_an_error_where_a_cosine_has_none():
    exact = [torch.tensor([[1.0], [2.0], [4.0]])]
    near, far = ([exact[0] + step] for step in (0.1, 0.5))
    assert output_error(near, exact, classes=False) == pytest.approx(0.0, abs=1e-12)
    errors = [output_error(one, exact, classes=True) for one in (near, far)]
    variance = float(exact[0].double().var(correction=0))
    assert errors == pytest.approx([0.1**2 / variance, 0.5**2 / variance], rel=1e-4)
    assert output_error(exact, exact, classes=True) == 0.0


@pytest.mark.parametrize("classes", [True, False])
def test_no_number_is_infinitely_far_away(classes):
    assert output_error([torch.tensor([[math.nan, 1.0]])], [torch.ones(1, 2)], classes=classes) == math.inf


def reranker():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=1
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
        model.bert.encoder.layer[0].output.LayerNorm.weight[3] = 30.0
    return model


def batches(seed, count=4):
    draw = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(0, 60, (8, 12), generator=draw)} for _ in range(count)]


def search_of(model, calibration=batches):
    data = CalibrationData(batches(9), calibration, None, DataInfo(source="random"))
    return Search(model, data, qf.QuantSpec(placement="matmul", per_channel=True), SILENT)


def test_a_model_with_one_logit_is_searched():
    """Its steps have errors, and what is kept lowers the squared distance of its logits."""
    model = reranker()
    search = search_of(model)
    found = search.run(seconds=600, ranges=True)
    kept = [step.error for step in found.steps if step.kept]
    assert kept[0] > 0
    assert len(kept) > 1
    with torch.no_grad():
        ours, exact = (torch.cat([one(**batch).logits for batch in search.judges]) for one in (found.model, model))
    assert kept[-1] == pytest.approx(float((ours - exact).square().mean() / exact.var(correction=0)), rel=1e-3)


def test_a_search_says_on_how_much_data_it_ran_and_on_which():
    search = search_of(reranker(), lambda _: batches(0))
    search.pass_seconds = 1.0
    found = search.run(seconds=1e-9, ranges=False)
    assert "judged on the data it is calibrated on" in found.steps[0].what
    assert f"on {len(search.calibration)} of {len(batches(0))} batches" in found.steps[0].what
