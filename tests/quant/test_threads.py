"""Quantized models in several threads: none of them changes what another computes, or what is left."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import quietformer as qf
from quietformer.errors import QuietformerError
from quietformer.quant.calibration import full_precision
from tests.tiny_models import build, inputs, logits

TIMES = 40


@pytest.fixture(scope="module")
def quantized():
    model, batch = build("bert"), inputs("bert")
    qf.quantize_(model, qf.QuantSpec(per_channel=True), batch)
    qf.calibrate_(model, [batch])
    return model


def test_overlapping_full_precision_leaves_the_model_quantized(quantized):
    """One enters, another enters, the first leaves, the other leaves: the modes of the first were lost that way."""
    before = logits(quantized, inputs("bert"))
    first, second = threading.Event(), threading.Event()
    found = {}

    def one():
        with full_precision(quantized):
            first.set()
            second.wait()
        found["quantized after one"] = logits(quantized, inputs("bert"))

    thread = threading.Thread(target=one)
    thread.start()
    first.wait()
    with full_precision(quantized):
        second.set()
        thread.join()
        found["full precision"] = logits(quantized, inputs("bert"))
    assert torch.equal(found["quantized after one"], before)
    assert not torch.equal(found["full precision"], before)
    assert torch.equal(logits(quantized, inputs("bert")), before)


def test_threads_compute_what_they_would_compute_alone(quantized):
    """Some in full precision, some quantized, through the same modules at the same time."""
    alone = {False: logits(quantized, inputs("bert"))}
    with full_precision(quantized):
        alone[True] = logits(quantized, inputs("bert"))
    gate = threading.Barrier(4)

    def work(full):
        gate.wait()
        found = []
        for _ in range(TIMES):
            if full:
                with full_precision(quantized):
                    found.append(logits(quantized, inputs("bert")))
            else:
                found.append(logits(quantized, inputs("bert")))
        return all(torch.equal(one, alone[full]) for one in found)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, [False, True, False, True])) == [True] * 4
    assert torch.equal(logits(quantized, inputs("bert")), alone[False])
    assert not any("weight" in vars(module) for module in quantized.modules())


def test_a_second_calibration_at_the_same_time_is_refused(quantized):
    inside, leave = threading.Event(), threading.Event()

    def batches():
        yield inputs("bert")
        inside.set()
        leave.wait()

    before = logits(quantized, inputs("bert"))
    thread = threading.Thread(target=lambda: qf.calibrate_(quantized, batches()))
    thread.start()
    inside.wait()
    try:
        with pytest.raises(QuietformerError, match="being calibrated by another thread"):
            qf.calibrate_(quantized, [inputs("bert")])
        assert torch.equal(logits(quantized, inputs("bert")), before)
    finally:
        leave.set()
        thread.join()
    assert torch.equal(logits(quantized, inputs("bert")), before)
