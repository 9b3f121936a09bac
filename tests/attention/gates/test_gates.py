"""Gates: the paper's parameter counts, a loop over heads as reference, and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import quietformer as qf
from quietformer.attention.core import AttentionCore
from quietformer.config.attention import HeadGeometry, gates
from quietformer.errors import SpecError

GEOMETRY = HeadGeometry(n_heads=3, d_model=12, d_value=5)
every = pytest.mark.parametrize("name", list(gates))
sizes = st.integers(1, 6)


def read_by(name, **how):
    """What a gate of this kind reads: the layer's input (B, Q, d), or the values (B, H, K, D)."""
    of_values = gates[name]().build(GEOMETRY).of_values
    return torch.randn(2, 3, 4, 5, **how) if of_values else torch.randn(2, 4, 12, **how)


def parameters(spec, geometry):
    return sum(parameter.numel() for parameter in spec.build(geometry).parameters())


@given(heads=sizes, width=sizes, hidden=sizes)
def test_parameter_counts_are_the_papers(heads, width, hidden):
    geometry = HeadGeometry(n_heads=heads, d_model=heads * width, d_value=width)
    assert parameters(qf.LinearGate(), geometry) == heads * (width + 1)
    assert parameters(qf.MLPGate(hidden=hidden), geometry) == heads * (hidden * (width + 2) + 1)
    assert parameters(qf.AllHeadsGate(), geometry) == heads * (geometry.d_model + 1)
    assert parameters(qf.AllElementsGate(), geometry) == heads * width * (geometry.d_model + 1)
    assert parameters(qf.ValueStateGate(), geometry) == heads * (width + 1)


@every
@pytest.mark.parametrize("pi", [0.1, 0.25, 0.5, 0.9])
def test_a_gate_starts_as_open_as_asked(name, pi):
    gate = gates[name](pi_init=pi, weight_std=0.0).build(GEOMETRY)
    opened = gate(read_by(name))
    torch.testing.assert_close(opened, torch.full_like(opened, pi))


@every
def test_a_gate_for_a_pretrained_model_starts_near_one(name):
    gate = gates[name].for_pretrained(pi_init=0.25).build(GEOMETRY)
    torch.testing.assert_close(gate(read_by(name)).mean(), torch.tensor(1.0), rtol=0, atol=0.05)


@every
def test_gate_gradients(name):
    torch.manual_seed(0)
    gate = gates[name]().build(GEOMETRY).double()
    x = read_by(name, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: gate(x), (x, *gate.parameters()))


@every
def test_half_precision_gates_come_out_in_float32(name):
    gate = gates[name]().build(GEOMETRY).to(torch.bfloat16)
    assert gate(read_by(name, dtype=torch.bfloat16)).dtype == torch.float32


def test_per_head_gates_equal_a_loop_over_heads():
    torch.manual_seed(0)
    x = torch.randn(2, 4, 12)
    slices = x.view(2, 4, 3, 4)
    linear, mlp = qf.LinearGate().build(GEOMETRY), qf.MLPGate(hidden=7).build(GEOMETRY)
    elementwise = qf.ElementwiseGate().build(GEOMETRY)
    for head in range(3):
        x_h = slices[:, :, head]
        expected = torch.sigmoid(torch.nn.functional.linear(x_h, linear.weight[head : head + 1], linear.bias[head]))
        torch.testing.assert_close(linear(x)[:, :, head], expected)
        hidden = torch.relu(torch.nn.functional.linear(x_h, mlp.weight_in[head].T, mlp.bias_in[head]))
        expected = torch.sigmoid(torch.nn.functional.linear(hidden, mlp.weight_out[head : head + 1], mlp.bias[head]))
        torch.testing.assert_close(mlp(x)[:, :, head], expected)
        expected = torch.sigmoid(torch.nn.functional.linear(x_h, elementwise.weight[head].T, elementwise.bias[head]))
        torch.testing.assert_close(elementwise(x)[:, :, head], expected)


def test_the_all_heads_gate_mixes_heads_and_the_linear_one_does_not():
    torch.manual_seed(0)
    x = torch.randn(1, 1, 12)
    other = x.clone()
    other[..., 4:] += 1  # not head 0's features
    linear, mixed = qf.LinearGate().build(GEOMETRY), qf.AllHeadsGate().build(GEOMETRY)
    assert torch.equal(linear(x)[..., 0, :], linear(other)[..., 0, :])
    assert not torch.equal(mixed(x)[..., 0, :], mixed(other)[..., 0, :])


def test_qwens_gates_are_sigmoids_of_linear_maps_of_the_whole_input():
    torch.manual_seed(0)
    x = torch.randn(2, 4, 12)
    for spec, width in ((qf.AllHeadsGate(), 1), (qf.AllElementsGate(), 5)):
        gate, layer = spec.build(GEOMETRY), torch.nn.Linear(12, 3 * width)
        layer.load_state_dict({"weight": gate.weight, "bias": gate.bias})
        torch.testing.assert_close(gate(x), torch.sigmoid(layer(x)).view(2, 4, 3, width))


def test_a_value_state_gate_scales_what_each_token_contributes():
    """The sum over keys of weight, gate and value, one head and key after the other."""
    torch.manual_seed(0)
    core = AttentionCore(qf.AttentionSpec(gate=qf.ValueStateGate()), GEOMETRY).double().eval()
    query, key, value = (torch.randn(2, 3, 4, width, dtype=torch.float64) for width in (6, 6, 5))
    context, weights = core(query, key, value)
    weight, bias = core.gating.weight, core.gating.bias
    expected = torch.zeros(2, 4, 3, 5, dtype=torch.float64)
    for head in range(3):
        for place in range(4):
            v = value[:, head, place]
            gated = torch.sigmoid(v @ weight[head] + bias[head])[:, None] * v
            expected[:, :, head] += weights[:, head, :, place, None] * gated[:, None]
    torch.testing.assert_close(context, expected)


def test_a_value_state_gate_reads_the_values_of_every_query_head():
    """With grouped heads, each query head has a gate of its own on the values it shares."""
    torch.manual_seed(0)
    core = AttentionCore(qf.AttentionSpec(gate=qf.ValueStateGate()), HeadGeometry(4, 16, 4)).eval()
    query, key, value = torch.randn(1, 4, 3, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    grouped, _ = core(query, key, value)
    whole, _ = core(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1))
    torch.testing.assert_close(grouped, whole)


def test_a_width_that_does_not_divide_is_refused():
    with pytest.raises(SpecError, match="use the all_heads gate"):
        qf.LinearGate().build(HeadGeometry(n_heads=5, d_model=12, d_value=4))
    for spec in (qf.ElementwiseGate(), qf.AllElementsGate(), qf.ValueStateGate()):
        with pytest.raises(SpecError, match=f"the {spec.kind} gate needs the width"):
            spec.build(HeadGeometry(n_heads=3, d_model=12, d_value=None))
