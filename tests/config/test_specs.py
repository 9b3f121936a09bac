"""Specs validate themselves, name what is wrong, and survive JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quietformer as qf
from quietformer.config.attention import PatchNormSpec, gates, normalizers
from quietformer.config.model_changes import FORMAT_VERSION, ModelChanges
from quietformer.config.registry import Registry
from quietformer.errors import SpecError
from tests.tiny_models import VARIANTS

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qf.ClippedSoftmax(gamma=0.1), "clipped_softmax: gamma must be <= 0, got 0.1"),
        (lambda: qf.ClippedSoftmax(zeta=0.9), "clipped_softmax: zeta must be >= 1, got 0.9"),
        (lambda: qf.ClippedSoftmax(gamma=-0.1, alpha=4), "give gamma or alpha, not both"),
        (lambda: qf.ClippedSoftmax(gama=-0.1), "has no field 'gama'; did you mean 'gamma'?"),
        (lambda: qf.ClippedSoftmax(gamma=math.nan), "gamma"),
        (lambda: qf.ClippedSoftmax(keys="rows"), "keys"),
        (lambda: qf.ClippedSoftmax(warmup_steps=-1), "warmup_steps must be >= 0, got -1"),
        (lambda: qf.LinearGate(pi_init=1.0), "linear: pi_init must be < 1, got 1.0"),
        (lambda: qf.LinearGate(pi_init=True), "pi_init"),
        (lambda: qf.MLPGate(hidden=0), "mlp: hidden must be >= 1, got 0"),
        (lambda: qf.AttentionSpec(normalizer="cliped_softmax"), "did you mean 'clipped_softmax'?"),
        (lambda: qf.AttentionSpec(normalizer=qf.LinearGate()), "LinearGate is not a normalizer"),
        (lambda: qf.AttentionSpec(gate=qf.Softmax()), "Softmax is not a gate"),
        (lambda: qf.AttentionSpec(normalizer={"alpha": 4}), "needs a 'kind'"),
        (lambda: qf.AttentionSpec(normalizer=3), "got 3"),
        (lambda: qf.AttentionSpec(normaliser="softmax"), "did you mean 'normalizer'?"),
        (lambda: normalizers.parse("softmax(1)"), "cannot read normalizer"),
        (lambda: normalizers.parse("softmax(**{})"), "cannot read normalizer"),
        (lambda: normalizers.parse("clipped_softmax(alpha=__import__('os'))"), "cannot read normalizer"),
        (lambda: gates.parse("linear(pi_init=)"), "cannot read gate"),
        (lambda: gates.parse(""), "cannot read gate"),
    ],
)
def test_nonsense_is_refused_in_one_line_that_names_it(make, message):
    with pytest.raises(SpecError) as raised:
        make()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_spec_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        qf.ClippedSoftmax(alpha=4).alpha = 2


@pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS)
def test_json_gives_the_same_spec_back(spec):
    assert qf.AttentionSpec(**json.loads(json.dumps(spec.to_dict()))) == spec


@given(
    gamma=finite.filter(lambda x: x <= 0),
    zeta=finite.filter(lambda x: x >= 1),
    keys=st.sampled_from(["sequence", "row"]),
)
def test_text_form_gives_the_same_spec_back(gamma, zeta, keys):
    spec = qf.ClippedSoftmax(gamma=gamma, zeta=zeta, keys=keys)
    assert normalizers.parse(str(spec)) == spec


def test_text_form_may_leave_out_the_brackets():
    assert normalizers.parse("softmax1") == qf.Softmax1()
    assert gates.parse(" linear(pi_init=0.25) ") == qf.LinearGate(pi_init=0.25)


def test_the_same_name_twice_is_an_error():
    registry = Registry("thing", home="quietformer.config.spec_base")
    registry.register("one")(type("One", (PatchNormSpec,), {}))
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("one")(type("Two", (PatchNormSpec,), {}))


def test_a_section_keeps_everything():
    spec = ModelChanges(attention=VARIANTS["both"], patch_norm=PatchNormSpec(eps=1e-5))
    assert ModelChanges.from_section(json.loads(json.dumps(spec.to_section()))) == spec


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"version": FORMAT_VERSION + 1}, "pip install -U quietformer"),
        ({"version": "1"}, "no usable version"),
        ({"version": True}, "no usable version"),
        ({}, "no usable version"),
        ({"version": 1, "atention": None}, "did you mean 'attention'?"),
        ({"version": 1, "attention": 3}, "must be a mapping"),
        ([], "must be a mapping"),
    ],
)
def test_a_foreign_section_is_refused(section, message):
    with pytest.raises(SpecError, match=message.replace("?", r"\?")):
        ModelChanges.from_section(section)
