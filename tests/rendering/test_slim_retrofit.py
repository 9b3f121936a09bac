"""What the page of a retrofit keeps of two inspections, and what it leaves out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from quietformer.analysis.attention_pictures import pack
from quietformer.rendering.page import page
from quietformer.rendering.plots import unpack
from quietformer.rendering.slim_retrofit import MOST_LOGGED, slim
from quietformer.results.inspect import PackedMatrix
from tests.rendering.as_report import as_report
from tests.rendering.retrofits import retrofit


def crowd(inspected, layers, heads, tokens=64, width=64):
    """The same inspection with the pictures of a larger model, two sequences of them."""
    generator = torch.Generator().manual_seed(0)
    one = {
        "P": pack(torch.rand(tokens, tokens, generator=generator), symmetric=False).model_dump(),
        "V": pack(torch.randn(tokens, width, generator=generator), symmetric=True).model_dump(),
        "PV": pack(torch.randn(tokens, width, generator=generator), symmetric=True).model_dump(),
        "pi": torch.rand(tokens, generator=generator).tolist(),
    }
    entries = [
        {"sequence": sequence, "layer": layer, "heads": [one] * heads}
        for layer in range(layers)
        for sequence in range(2)
    ]
    pictures = {"sequences": [{"tokens": ["t"] * tokens, "length": tokens}] * 2, "attention": entries}
    return inspected | {"pictures": pictures}


@pytest.mark.parametrize(("layers", "heads"), [(6, 12), (12, 12), (24, 16)])
def test_a_page_of_a_large_model_stays_small(layers, heads):
    report = retrofit()
    for name in ("before", "after"):
        report[name]["inspect"] = crowd(report[name]["inspect"], layers, heads)
    assert len(page(as_report(report)).encode()) < 1_500_000
    kept = slim(report)["after"]["inspect"]["pictures"]["attention"]
    assert len(kept) == layers
    assert all(len(entry["heads"]) == heads for entry in kept)


def test_a_smaller_picture_is_the_corner_of_the_whole_one():
    report = retrofit()
    whole = crowd(report["before"]["inspect"], layers=24, heads=16)
    for name in ("before", "after"):
        report[name]["inspect"] = whole
    original = whole["pictures"]["attention"][0]["heads"][0]
    kept = slim(report)["before"]["inspect"]["pictures"]["attention"][0]["heads"][0]
    corner = unpack(PackedMatrix(**kept["P"]))
    tokens = len(corner)
    assert 24 <= tokens < 64
    np.testing.assert_array_equal(corner, unpack(PackedMatrix(**original["P"]))[:tokens, :tokens])
    assert kept["pi"] == original["pi"][:tokens]


def test_small_pictures_are_kept_whole():
    report = retrofit()
    kept = slim(report)["after"]["inspect"]["pictures"]["attention"]
    given = [e for e in report["after"]["inspect"]["pictures"]["attention"] if e["sequence"] == 0]
    assert [[head["P"] for head in entry["heads"]] for entry in kept] == [
        [head["P"] for head in entry["heads"]] for entry in given
    ]


def test_every_layer_keeps_its_figures_and_the_given_ones_are_not_touched():
    report = retrofit()
    untouched = copy.deepcopy(report)
    slimmed = slim(report)
    assert report == untouched
    for name in ("before", "after"):
        given = [row for row in report[name]["inspect"]["sites"] if row["site"] == "ffn_output"]
        kept = slimmed[name]["inspect"]["sites"]
        assert [(row["layer"], row["infinity_norm"], row["kurtosis"]) for row in kept] == [
            (row["layer"], row["infinity_norm"], row["kurtosis"]) for row in given
        ]
        assert slimmed[name]["real"] == report[name]["real"]
    assert slimmed["recipe"] == report["recipe"]


def test_a_model_without_an_ffn_output_shows_the_tensor_of_its_headline():
    report = retrofit()
    for name in ("before", "after"):
        inspected = report[name]["inspect"]
        inspected["sites"] = [row for row in inspected["sites"] if row["site"] != "ffn_output"]
        inspected["headline"]["infinity_site"] = "attention_output"
    kept = slim(report)["after"]["inspect"]["sites"]
    assert {row["site"] for row in kept} == {"attention_output"}


def test_a_model_left_alone_has_no_after():
    assert slim(retrofit(after=None))["after"] is None


def test_a_long_log_is_thinned_but_keeps_its_evaluations_and_its_end():
    log = [{"step": step, "loss": 1.0} for step in range(1, 20_001)]
    for line in log[6::500]:
        line["eval_int8"] = 0.5
    kept = slim(retrofit(log=log))["log"]
    evaluated = [line for line in log if "eval_int8" in line]
    assert len(kept) <= MOST_LOGGED + len(evaluated) + 1
    assert [line for line in kept if "eval_int8" in line] == evaluated
    assert (kept[0], kept[-1]) == (log[0], log[-1])
    assert slim(retrofit(log=log[:50]))["log"] == log[:50]
