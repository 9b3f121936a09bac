"""From batches to ranges: each site from what passes it, errors that name the site, and the folder that comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

import quietformer as qf
from quietformer.config.quantization import estimators
from quietformer.errors import CheckpointError, QuietformerError
from quietformer.quant.calibration import dequantize_, full_precision, use_estimators_
from quietformer.quant.insertion import quantizers
from quietformer.quant.sensitivity import Measure, sensitivity, signal_to_noise
from tests.tiny_models import CAUSAL, PAPER, build, inputs, logits


def batches(name, count=3):
    given = inputs(name)
    key = next(iter(given))
    return [given | {key: given[key].roll(shift, 1)} for shift in range(count)]


def calibrated(name, **fields):
    model = build(name)
    plan = qf.quantize_(model, qf.QuantSpec(**fields), inputs(name))
    qf.calibrate_(model, batches(name))
    return model, plan


def test_ranges_are_those_of_the_floating_point_model():
    """Hugging Face's own hidden states tell what passes the output of each layer."""
    plain = build("bert")
    with torch.no_grad():
        states = [plain(**given, output_hidden_states=True).hidden_states for given in batches("bert")]
    model, _ = calibrated("bert", activations="minmax")
    for layer in range(2):
        lo, hi = quantizers(model)[f"bert.encoder.layer.{layer}.output.LayerNorm:output"].range()
        step = float(hi - lo) / 255
        values = torch.stack([state[layer + 1] for state in states])
        assert abs(float(lo) - float(values.min())) <= step
        assert abs(float(hi) - float(values.max())) <= step


def test_running_minmax_averages_batches():
    model, _ = calibrated("bert", activations="running_minmax(momentum=0.5)", activation_bits=16)
    plain, expected = build("bert"), None
    for given in batches("bert"):
        with torch.no_grad():
            high = plain(**given, output_hidden_states=True).hidden_states[1].max()
        expected = high if expected is None else 0.5 * expected + 0.5 * high
    _, hi = quantizers(model)["bert.encoder.layer.0.output.LayerNorm:output"].range()
    assert float(hi) == pytest.approx(float(expected), rel=1e-3)


def test_a_site_that_saw_no_data_is_an_error_and_leaves_the_model_uncalibrated():
    model = build("bert")
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    layer = model.bert.encoder.layer[1].output
    layer.forward = lambda hidden, residual: residual  # its projection is called no more
    with pytest.raises(QuietformerError, match=r"bert\.encoder\.layer\.1\.output.* saw no data in calibration"):
        qf.calibrate_(model, batches("bert"))
    del layer.forward
    assert torch.isfinite(logits(model, inputs("bert"))).all()
    with pytest.raises(QuietformerError, match="not calibrated"):
        qf.save(model, "never")


def test_a_failed_recalibration_leaves_the_earlier_one():
    model, _ = calibrated("bert")
    before = logits(model, inputs("bert"))
    with pytest.raises(QuietformerError, match="no batches"):
        qf.calibrate_(model, [])
    assert torch.equal(logits(model, inputs("bert")), before)


def test_a_base_model_loads_from_a_folder_whose_head_is_quantized_too(tmp_path):
    model, _ = calibrated("bert", head=True)
    with torch.no_grad():
        expected = model.bert(**inputs("bert")).last_hidden_state
    qf.save(model, tmp_path / "q")
    with torch.no_grad():
        assert torch.equal(
            AutoModel.from_pretrained(tmp_path / "q").eval()(**inputs("bert")).last_hidden_state, expected
        )


def test_damaged_scales_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    model, _ = calibrated("bert")
    qf.save(model, tmp_path / "q")
    path = tmp_path / "q" / "quietformer.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("taps.scores.scale_pattern"))
    for pattern in (0, -1, 0x7F800000):  # nothing, not a number, infinity
        save_file(tensors | {name: torch.full_like(tensors[name], pattern)}, path, metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match="no usable scale"):
            qf.load(tmp_path / "q")


def test_no_batches_nan_and_a_model_without_quantizers_are_errors():
    model = build("bert")
    with pytest.raises(QuietformerError, match="has no quantizers"):
        qf.calibrate_(model, batches("bert"))
    qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    with pytest.raises(QuietformerError, match="no batches"):
        qf.calibrate_(model, [])
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias[0] = float("nan")
    with pytest.raises(QuietformerError, match=r"layer\.0\.output\.dense:output: values hold NaN"):
        qf.calibrate_(model, batches("bert"))


@pytest.mark.parametrize("name", list(estimators))
def test_every_estimator_calibrates_a_whole_model(name):
    model, _ = calibrated("opt", activations=name, weights=name)
    assert torch.isfinite(logits(model, inputs("opt"))).all()
    with full_precision(model):
        exact = logits(model, inputs("opt"))
    assert float((logits(model, inputs("opt")) - exact).abs().max()) < 0.2 * float(exact.abs().max())


def test_estimators_can_be_changed_without_placing_again():
    model, _ = calibrated("bert")
    before = {site: float(q.scale) for site, q in quantizers(model).items() if not site.endswith(":weight")}
    use_estimators_(model, activations=estimators.read("percentile(q=99)"))
    qf.calibrate_(model, batches("bert"))
    after = {site: float(q.scale) for site, q in quantizers(model).items() if not site.endswith(":weight")}
    assert sum(after[site] < before[site] for site in before) > len(before) / 2


@pytest.mark.parametrize(
    ("name", "dtype"),
    # Casting a Llama casts its rotations too, which loading makes anew in float32, quantized or not.
    [(name, torch.float32) for name in sorted({*PAPER, *CAUSAL})]
    + [(name, torch.bfloat16) for name in (*PAPER, "gpt2")],
)
def test_quantize_save_load_gives_identical_outputs(name, dtype, tmp_path):
    model = build(name).to(dtype)
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs(name).items()}
    qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate.for_pretrained()))
    qf.quantize_(model, qf.QuantSpec(per_channel=True, rules=("*.ffn_output=16", "0.scores")), given)
    qf.calibrate_(model, [given])
    expected = logits(model, given)
    qf.save(model, tmp_path / "q")
    loaded = qf.load(tmp_path / "q")
    assert loaded.dtype == dtype
    assert torch.equal(logits(loaded, given), expected)
    assert set(quantizers(loaded)) == set(quantizers(model))
    qf.save(loaded, tmp_path / "again")
    assert torch.equal(logits(qf.load(tmp_path / "again"), given), expected)


def test_plain_from_pretrained_gives_the_quantized_model_with_or_without_its_head(tmp_path):
    model, _ = calibrated("bert")
    with torch.no_grad():
        expected = model.bert(**inputs("bert")).last_hidden_state
    qf.save(model, tmp_path / "q")
    assert torch.equal(
        logits(AutoModelForMaskedLM.from_pretrained(tmp_path / "q"), inputs("bert")), logits(model, inputs("bert"))
    )
    base = AutoModel.from_pretrained(tmp_path / "q").eval()
    with torch.no_grad():
        assert torch.equal(base(**inputs("bert")).last_hidden_state, expected)


def test_a_damaged_quantized_folder_is_one_line(tmp_path):
    model, _ = calibrated("bert")
    qf.save(model, tmp_path / "q")
    path = tmp_path / "q" / "config.json"
    config = json.loads(path.read_text())
    sites = config["quantization_config"]["quantized"]["sites"]
    first = sorted(sites)[0]
    for change, message in (
        ({first: "u99"}, "cannot read grid 'u99'"),
        ({"bert.encoder.layer.9.output.dense:weight": "s8"}, "there is no 'bert.encoder.layer.9"),
        ({"bert.embeddings.LayerNorm:add_7": "u8"}, "lack"),
    ):
        damaged = json.loads(json.dumps(config))
        damaged["quantization_config"]["quantized"]["sites"] |= change
        path.write_text(json.dumps(damaged))
        with pytest.raises(CheckpointError, match=message) as caught:
            qf.load(tmp_path / "q")
        assert "\n" not in str(caught.value)


def test_a_kill_while_saving_leaves_a_whole_folder_or_none(tmp_path):
    """Killed at many moments of writing over an old folder: what is there always loads."""
    script = tmp_path / "save.py"
    script.write_text(
        "import sys, torch\nimport quietformer as qf\nfrom tests.tiny_models import build, inputs\n"
        "model = build('bert')\nqf.quantize_(model, qf.QuantSpec(), inputs('bert'))\n"
        "qf.calibrate_(model, [inputs('bert')])\nqf.save(model, sys.argv[1])\nprint('ready', flush=True)\n"
        "while True:\n    qf.save(model, sys.argv[1])\n"
    )
    folder = tmp_path / "q"
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": root}
    )
    assert process.stdout.readline().strip() == b"ready"
    given = inputs("bert")
    for moment in (0.011, 0.023, 0.037, 0.053, 0.071):
        time.sleep(moment)
        os.kill(process.pid, signal.SIGSTOP)  # frozen anywhere, as a reader beside it would find it
        names = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]
        if "q" in names:  # the one moment without it lies between two renames
            assert torch.isfinite(logits(qf.load(folder), given)).all()
        os.kill(process.pid, signal.SIGCONT)
    process.kill()
    process.wait()


def test_signal_to_noise_is_that_of_the_formula():
    model, _ = calibrated("bert")
    site = "bert.encoder.layer.0.output.dense:weight"
    weight = model.bert.encoder.layer[0].output.dense.weight.detach().double()
    scale = weight.abs().max() / 127
    error = weight - (weight / scale).round().clamp(-128, 127) * scale
    expected = 10 * torch.log10(weight.square().sum() / error.square().sum())
    assert signal_to_noise(model, batches("bert", 1))[site] == pytest.approx(float(expected), abs=0.02)


def test_sensitivity_puts_the_tensor_that_breaks_the_model_first():
    model = build("bert")
    with torch.no_grad():  # one outlier: its grid has one level left for all the rest
        model.bert.encoder.layer[1].output.dense.bias[5] = 5000.0
    plan = qf.quantize_(model, qf.QuantSpec(), inputs("bert"))
    qf.calibrate_(model, batches("bert"))
    with full_precision(model):
        exact = logits(model, inputs("bert"))

    def measure():
        return float(torch.nn.functional.cosine_similarity(logits(model, inputs("bert")), exact, dim=-1).mean())

    before = logits(model, inputs("bert"))
    found = sensitivity(model, plan, batches("bert", 1), Measure("cosine", "higher", measure))
    assert {row.short for row in found.rows[:3]} == {"1.ffn_output", "1.ffn_residual", "1.ffn_norm"}
    assert found.nothing == pytest.approx(1.0, abs=1e-6)
    harms = [row.only for row in found.rows]
    assert harms == sorted(harms)
    assert torch.equal(logits(model, inputs("bert")), before)  # left as it was


def test_activations_calibrated_alone_find_the_same_ranges_and_leave_weights():
    model, given = build("bert"), inputs("bert")
    qf.quantize_(model, qf.QuantSpec(per_channel=True), given)
    qf.calibrate_(model, [given])
    scales = {site: quantizer.scale.clone() for site, quantizer in quantizers(model).items()}
    weights = [site for site in scales if site.endswith(":weight")]
    with torch.no_grad():
        for site, quantizer in quantizers(model).items():
            quantizer.scale_pattern.copy_((2 * scales[site]).view(torch.int32))
    qf.calibrate_(model, [given], weights=False)
    for site, quantizer in quantizers(model).items():
        assert torch.equal(quantizer.scale, 2 * scales[site] if site in weights else scales[site])


def test_dequantizing_what_is_not_quantized_is_an_error():
    with pytest.raises(QuietformerError, match="is not quantized"):
        dequantize_(build("bert"))
