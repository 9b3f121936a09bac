"""MPNet computes attention itself: with the core swapped in it is the same model, and everything else works on it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel, MPNetConfig, MPNetForMaskedLM, MPNetForSequenceClassification, MPNetModel
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

import quietformer as qf
from quietformer.architectures.layout import find_blocks
from quietformer.attention.core import plain_attention
from quietformer.attention.find_layers import find_other_attention
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.errors import UnsupportedModelError
from quietformer.quant.calibration import dequantize_, full_precision
from quietformer.quant.insertion import quantizers
from tests.tiny_models import LENGTH, VARIANTS, VOCABULARY, inputs, logits

every_variant = pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
HEADS, LAYERS, POSITIONS = 4, 2, 64


def config(d_head=16):
    return MPNetConfig(
        vocab_size=VOCABULARY,
        hidden_size=HEADS * d_head,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
    )


def build(kind=MPNetForMaskedLM, **sizes):
    """Weights large enough for attention and relative positions to matter."""
    torch.manual_seed(0)
    model = kind(config(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.2)
    return model.eval()


def changed(spec):
    model = build()
    qf.apply_attention_(model, spec)
    return model


GIVEN = inputs("bert", padded=True)
REAL = GIVEN["attention_mask"].bool()


@pytest.mark.parametrize("padded", [False, True])
def test_the_vanilla_core_is_mpnets_own_attention(padded):
    model, given = build(), inputs("bert", padded=padded)
    expected = logits(model, given)
    qf.apply_attention_(model, qf.AttentionSpec())
    with plain_attention():
        assert torch.equal(logits(model, given), expected)
    torch.testing.assert_close(logits(model, given), expected)


@pytest.mark.parametrize("kind", [MPNetModel, MPNetForSequenceClassification])
def test_other_heads_and_widths_agree_up_to_rounding(kind):
    """MPNet divides by the root of the width and the core multiplies: the same number for powers of four only."""
    model = build(kind, d_head=8)
    with torch.no_grad():
        expected = model(**GIVEN)[0]
        qf.apply_attention_(model, qf.AttentionSpec())
        difference = (model(**GIVEN)[0] - expected).abs().max()
    assert difference <= 1e-6 * expected.abs().max()


def test_gradients_are_mpnets_own():
    gradients = []
    for apply in (False, True):
        model = build()
        if apply:
            qf.apply_attention_(model, qf.AttentionSpec())
        model(**GIVEN).logits[REAL].square().mean().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert gradients[0]["mpnet.encoder.relative_attention_bias.weight"].abs().sum() > 0
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


def test_training_with_dropout_follows_mpnet_to_the_bit():
    model = build().train()
    torch.manual_seed(5)
    expected = model(**GIVEN).logits
    qf.apply_attention_(model, qf.AttentionSpec())
    assert all(core.training for _, core in qf.attention_cores(model))
    torch.manual_seed(5)
    assert torch.equal(model(**GIVEN).logits, expected)
    model.eval()
    assert torch.equal(model(**GIVEN).logits, model(**GIVEN).logits)


def test_the_attentions_are_mpnets_own():
    model = build()
    with torch.no_grad():
        expected = model(**GIVEN, output_attentions=True).attentions
        qf.apply_attention_(model, qf.AttentionSpec())
        got = model(**GIVEN, output_attentions=True).attentions
        assert model(**GIVEN).attentions is None
    assert len(got) == LAYERS
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@every_variant
def test_padding_changes_nothing(spec):
    """Neither what stands in the padding nor how much of it there is."""
    model = changed(spec)
    other = GIVEN | {"input_ids": GIVEN["input_ids"].clone()}
    other["input_ids"][1, -1] = 50
    assert torch.equal(logits(model, GIVEN)[REAL], logits(model, other)[REAL])
    n_real = int(REAL[1].sum())
    alone = logits(model, {name: tensor[1:, :n_real] for name, tensor in GIVEN.items()})
    torch.testing.assert_close(logits(model, GIVEN)[1:, :n_real], alone, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        attentions = model(**GIVEN, output_attentions=True).attentions
    assert all((weights[1, ..., n_real:] == 0).all() for weights in attentions)


@every_variant
def test_a_gradient_reaches_every_new_parameter_and_the_positions(spec):
    model = changed(spec)
    model(**inputs("bert")).logits.square().sum().backward()
    assert model.mpnet.encoder.relative_attention_bias.weight.grad.abs().sum() > 0
    for layer, core in qf.attention_cores(model):
        for name, parameter in core.named_parameters():
            assert parameter.grad is not None, f"{layer}.{name}"
            assert parameter.grad.abs().sum() > 0, f"{layer}.{name}"


@every_variant
def test_removing_gives_the_original_back(spec):
    model = build()
    expected, keys, before = logits(model, GIVEN), list(model.state_dict()), model.config.to_dict()
    kinds = [type(module) for module in model.modules()]
    qf.apply_attention_(model, spec)
    assert find_other_attention(model) == []
    qf.remove_attention_(model)
    assert torch.equal(logits(model, GIVEN), expected)
    assert list(model.state_dict()) == keys
    assert model.config.to_dict() == before
    assert [type(module) for module in model.modules()] == kinds


@every_variant
def test_copies_and_pickles_are_independent(spec):
    model = changed(spec)
    expected = logits(model, GIVEN)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(twin, GIVEN), expected)
        assert isinstance(twin.mpnet.encoder.layer[0].attention.attn, MPNetSelfAttention)
        qf.remove_attention_(twin)
        assert torch.equal(logits(model, GIVEN), expected)


@every_variant
def test_save_and_load_keep_every_bit(spec, tmp_path):
    model = changed(spec)
    qf.advance_warmup_(model)
    qf.save(model, tmp_path / "out")
    loaded = qf.load(tmp_path / "out")
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(logits(loaded, GIVEN), logits(model, GIVEN))
    base = AutoModel.from_pretrained(tmp_path / "out")  # without the head
    assert {core.spec for _, core in qf.attention_cores(base)} == {spec}
    with torch.no_grad():
        expected = model.mpnet(**GIVEN).last_hidden_state
        assert torch.equal(base(**GIVEN).last_hidden_state, expected)


@every_variant
def test_bfloat16_models_stay_bfloat16(spec):
    model = build().to(torch.bfloat16)
    qf.apply_attention_(model, spec)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert logits(model, GIVEN).dtype == torch.bfloat16
    assert logits(model, GIVEN).isfinite().all()


@pytest.mark.parametrize("spec_name", ["clipped-row", "gate-linear"])
def test_compiled_models_compute_the_same(spec_name):
    model = changed(VARIANTS[spec_name])
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(logits(compiled, GIVEN), logits(model, GIVEN), rtol=1e-4, atol=1e-5)


def test_applying_again_replaces_and_keeps_what_stayed():
    model = changed(VARIANTS["gate-linear"])
    gates = {name: p.clone() for name, p in model.named_parameters() if ".gating." in name}
    both = qf.AttentionSpec(normalizer=qf.Softmax1(), gate=VARIANTS["gate-linear"].gate)
    qf.apply_attention_(model, both)
    assert {core.spec for _, core in qf.attention_cores(model)} == {both}
    assert gates
    for name, gate in gates.items():
        assert torch.equal(model.get_parameter(name), gate)


def test_it_is_applied_without_a_warning_and_only_to_a_whole_model():
    model = build()
    with pytest.raises(UnsupportedModelError, match="apply to the transformers model inside"):
        qf.apply_attention_(model.mpnet.encoder, qf.AttentionSpec())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qf.apply_attention_(model, qf.AttentionSpec())


def test_models_that_share_a_config_do_not_share_their_attention(tmp_path):
    shared = config()
    one, other = MPNetModel(shared), MPNetModel(shared)
    qf.apply_attention_(one, VARIANTS["softmax1"])
    with pytest.raises(qf.QuietformerError, match="nothing of Quietformer"):
        qf.save(other, tmp_path / "other")


ELSEWHERE = """
import pickle, sys, torch
import quietformer as qf
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, BertConfig, BertModel

folder = sys.argv[1]
bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
qf.apply_attention_(bert, qf.AttentionSpec())
assert "transformers.models.mpnet.modeling_mpnet" not in sys.modules
expected = load_file(folder + "/expected.safetensors")
with open(folder + "/pickled", "rb") as file:
    pickled = pickle.load(file)
for model in (pickled, AutoModelForMaskedLM.from_pretrained(folder + "/out")):
    with torch.no_grad():
        assert torch.equal(model(expected["ids"]).logits, expected["logits"])
print("the same")
"""

WITHOUT_US = """
import sys, transformers
for folder, options in (("saved", {}), ("saved", {"attn_implementation": "eager"}), ("pretrained", {})):
    for kind in (transformers.AutoModelForMaskedLM, transformers.AutoModel, transformers.MPNetForMaskedLM):
        try:
            kind.from_pretrained(sys.argv[1] + "/" + folder, **options)
        except (OSError, ValueError) as error:
            print("refused:", type(error).__name__)
        else:
            print("LOADED", folder, options, kind.__name__)
"""


def test_another_process_needs_nothing_but_the_import(tmp_path):
    model, given = changed(VARIANTS["both"]), inputs("bert")
    qf.save(model, tmp_path / "out")
    (tmp_path / "pickled").write_bytes(pickle.dumps(model))
    ids = given["input_ids"]
    save_file({"ids": ids, "logits": logits(model, {"input_ids": ids})}, tmp_path / "expected.safetensors")
    run = subprocess.run([sys.executable, "-c", ELSEWHERE, tmp_path], capture_output=True, text=True, check=False)
    assert "the same" in run.stdout, run.stderr


def test_plain_transformers_refuses_the_folder(tmp_path):
    model = changed(VARIANTS["clipped-gamma"])
    qf.save(model, tmp_path / "saved")
    model.save_pretrained(tmp_path / "pretrained")
    run = subprocess.run([sys.executable, "-c", WITHOUT_US, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout.count("refused:") == 9, run.stdout


def test_inspect_sees_its_heads_and_sites():
    model = build()
    blocks = find_blocks(model)
    assert [block.attention for block in blocks] == [f"mpnet.encoder.layer.{i}.attention.attn" for i in range(LAYERS)]
    report = qf.inspect_model(model, [GIVEN])
    assert report.model.attention_seen
    assert report.model.heads == HEADS
    assert "post-norm" in report.headline.source
    given = {name: tensor[:1] for name, tensor in GIVEN.items()}  # without padding, which is not counted
    report = qf.inspect_model(model, [given])
    layer = model.mpnet.encoder.layer[0]
    with torch.no_grad():
        output = model.mpnet(**given, output_hidden_states=True, output_attentions=True)
        states, bias = output.hidden_states, model.mpnet.encoder.compute_position_bias(output.hidden_states[0])
        attended = layer.attention.attn(states[0], None, bias)[0]
        middle = layer.attention(states[0], None, bias)[0]
        given_by_ffn = layer.output.dense(layer.intermediate(middle))
    expected = {
        "attention_output": attended, "attention_residual": states[0] + attended, "attention_norm": middle,
        "ffn_output": given_by_ffn, "ffn_residual": middle + given_by_ffn, "ffn_norm": states[1],
        "probabilities": output.attentions[0],
    }  # fmt: skip
    for site, tensor in expected.items():
        assert report.tensor(site, 0).infinity_norm == pytest.approx(float(tensor.abs().max()), rel=1e-5), site
    assert not list(qf.attention_cores(model))


def test_quantized_it_is_on_its_grids_saved_and_restored(tmp_path):
    model = build()
    expected = logits(model, GIVEN)
    plan = qf.quantize_(model, qf.QuantSpec(weight_bits=16, activation_bits=16), GIVEN)
    shorts = {site.short for site in plan.sites}
    for layer in range(LAYERS):
        for what in ("query", "key", "value", "scores", "probabilities", "context"):
            assert f"{layer}.{what}" in shorts
        for what in ("attention_output", "attention_residual", "ffn_hidden", "ffn_output", "ffn_residual"):
            assert f"{layer}.{what}" in shorts
    base = {
        f"mpnet.{n}" for n, m in model.mpnet.named_modules() if isinstance(m, (torch.nn.Linear, torch.nn.Embedding))
    }
    unused = {f"mpnet.{n}" for n, _ in model.mpnet.named_modules() if n.startswith("pooler")}
    weights = {site.name.removesuffix(":weight") for site in plan.sites if site.name.endswith(":weight")}
    assert base - unused <= weights
    assert torch.equal(logits(model, GIVEN), expected)
    qf.calibrate_(model, [GIVEN])
    simulated = logits(model, GIVEN)
    assert not torch.equal(simulated, expected)
    torch.testing.assert_close(simulated[REAL], expected[REAL], rtol=1e-2, atol=1e-2)
    qf.save(model, tmp_path / "out")
    assert torch.equal(logits(qf.load(tmp_path / "out"), GIVEN), simulated)
    dequantize_(model)
    qf.remove_attention_(model)
    assert torch.equal(logits(model, GIVEN), expected)


def test_the_exported_graph_agrees_for_lengths_it_has_not_seen(tmp_path):
    model = changed(VARIANTS["both"])
    qf.quantize_(model, qf.QuantSpec(), GIVEN)
    longer = torch.randint(3, VOCABULARY, (3, 40), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(longer)
    mask[2, -4:] = 0
    other = {"input_ids": longer, "attention_mask": mask}  # beyond the distances that have a bucket each
    qf.calibrate_(model, [GIVEN, other])
    result = qf.export_onnx(model, tmp_path / "onnx", [GIVEN], options=qf.OnnxOptions(keep_fp32=True, threads=1))
    assert result.agreement.cosine > 0.999
    assert result.weights + result.activations == len(quantizers(model))
    assert longer.shape[1] > LENGTH
    for given in (GIVEN, other):
        real = given["attention_mask"].bool()
        with full_precision(model):
            expected = logits(model, given)[real]
        got = OnnxModel(tmp_path / "onnx" / "model_fp32.onnx")(given)["logits"][real]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
        simulated = logits(model, given)[real]
        integers = OnnxModel(tmp_path / "onnx" / "model.onnx")(given)["logits"][real]
        assert torch.nn.functional.cosine_similarity(integers, simulated, dim=-1).mean() > 0.999
