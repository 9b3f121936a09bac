"""Before and after: data that chooses nothing, and a table that says what both sides measured."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

import quietformer as qf
from quietformer.analysis.evaluate import Evaluation, Reference
from quietformer.architectures.task import task_of
from quietformer.config.recipe import Source
from quietformer.data.measuring_data import measuring_data
from quietformer.errors import QuietformerError
from quietformer.models.open import open_model
from quietformer.workflows.comparison import comparison, extremes, verdict_on
from quietformer.workflows.quality import spread_over
from quietformer.workflows.retrofit import RetrofitOptions, _against_balanced, make_recipe
from quietformer.workflows.retrofit_recipe import LONG_TAIL, attention_for_pretrained, long_tail
from tests.training.pretrained import tiny_pretrained
from tests.training.recipes import write_prose


@pytest.fixture
def setting(tmp_path):
    folder = tiny_pretrained(tmp_path / "model")
    model = open_model(str(folder))
    options = RetrofitOptions(
        gate="linear",
        sources=[Source(path=str(write_prose(tmp_path / "text.txt")))],
        sequences=20,
        length=24,
    )
    recipe = make_recipe(str(folder), model, task_of(model), {"sites": []}, options)
    return model, options, recipe, tmp_path


def rows_of(batches):
    return {
        tuple(ids[mask.bool()].tolist())
        for batch in batches
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    }


def test_what_is_reported_is_neither_trained_on_nor_used_to_choose(setting):
    from quietformer.data.training_data import training_data

    model, options, recipe, folder = setting
    measured = measuring_data(recipe, folder, model, "embedding", options)
    trained = training_data(recipe, folder)

    def tokens(rows):
        return {tuple(map(int, row["input_ids"])) for row in rows.take(range(len(rows)), None)}

    asked = rows_of(measured.evaluation)
    assert 0.8 * options.sequences <= len(asked) <= options.sequences  # what stands in the text twice is left out
    assert not asked & tokens(trained.rows)
    assert not asked & tokens(trained.validation)
    assert rows_of(measured.calibration(0)) <= tokens(trained.rows)
    assert rows_of(measured.calibration(0)) != rows_of(measured.calibration(1)) or len(trained.rows) <= 128


def test_other_text_is_measured_on_where_it_is_given(setting, tmp_path):
    model, options, recipe, folder = setting
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"A line of its own, number {number}." for number in range(30)))
    options.evaluation = [Source(path=str(other))]
    measured = measuring_data(recipe, folder, model, "embedding", options)
    assert measured.described["evaluation"] == {str(other): options.sequences}
    assert len(rows_of(measured.evaluation)) == options.sequences


def test_several_texts_get_equal_shares(setting, tmp_path):
    model, options, recipe, folder = setting
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"Line {number} of text {name}." for number in range(40)))
    options.evaluation = [Source(path=str(tmp_path / f"{name}.txt")) for name in ("one", "two")]
    measured = measuring_data(recipe, folder, model, "embedding", options)
    assert list(measured.described["evaluation"].values()) == [10, 10]
    assert len(rows_of(measured.evaluation)) == 20


def test_what_chose_the_checkpoint_is_never_what_is_reported(setting):
    model, options, recipe, folder = setting
    everything = recipe.model_copy(update={"data": recipe.data.model_copy(update={"validation_limit": 0})})
    with pytest.raises(QuietformerError, match="nothing is left to measure on"):
        measuring_data(everything, folder, model, "embedding", options)


def test_outliers_are_looked_for_in_texts_of_all_lengths():
    batches = [{"input_ids": torch.zeros(4, length)} for length in range(5, 45)]
    lengths = [batch["input_ids"].shape[1] for batch in spread_over(batches, 16)]
    assert lengths == [44, 31, 18, 5]
    assert len(spread_over(batches[:2], 64)) == 2
    assert [batch["input_ids"].shape[1] for batch in spread_over(batches, 1)] == [5]


def test_the_threshold_follows_the_models_own_scale():
    rows = [{"site": "ffn_output", "percentiles": {"1": -size, "99": size / 2}} for size in (1.0, 2.0, 9.0)]
    assert long_tail({"sites": rows}, "ffn_output", LONG_TAIL) == LONG_TAIL * 2.0
    tenfold = [
        {"site": "ffn_output", "percentiles": {k: 10 * v for k, v in row["percentiles"].items()}} for row in rows
    ]
    assert long_tail({"sites": tenfold}, "ffn_output", 6.0) == 10 * long_tail({"sites": rows}, "ffn_output", 6.0)


def side(reach, value, real=True):
    sites = [{"site": "ffn_output", "layer": 0, "min": -reach, "max": 1.0, "kurtosis": reach * 2}]
    return {
        "inspect": {"sites": sites},
        "float": {"cosine": 1.0},
        "simulated": {name: {"cosine": {"mean": value, "std": 0.0}} for name in ("per_tensor", "per_channel")},
        "real": {"per_tensor": {"cosine": value}, "per_channel": None, "latency": [], "bytes": {"fp32": 4e6, "int8": 1e6}}
        if real
        else None,
    }  # fmt: skip


def test_the_table_has_what_was_measured_and_nothing_else():
    rows = {row["what"]: row for row in comparison(side(100.0, 0.2), side(5.0, 0.9))}
    assert (rows["largest FFN output"]["before"], rows["largest FFN output"]["after"]) == (100.0, 5.0)
    assert rows["real INT8, per-tensor weights: cosine"]["after"] == 0.9
    assert "real INT8, per-channel weights: cosine" not in rows  # was not measured on either side
    assert rows["INT8 model, MB"]["after"] == 1.0
    bare = comparison(side(100.0, 0.2, real=False), side(5.0, 0.9, real=False))
    assert not any("real" in row["what"] or "MB" in row["what"] for row in bare)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (0.8, 0.999, "costs next to nothing"),
        (0.8, 0.99, "costs a little"),
        (0.8, 0.95, "75% of what INT8 took is back"),
        (0.94, 0.95, "INT8 still costs it quality"),
        (0.2, 0.6, "INT8 still breaks it"),
        (None, 0.95, "Nearly all of what INT8 took is back"),
    ],
)
def test_the_verdict_claims_no_more_than_was_won(before, after, told):
    reference = Reference(Evaluation("embedding", "cosine", {"cosine": 1.0}, 1, 1), torch.empty(0), torch.empty(0))
    assert told in verdict_on(side(100.0, before, real=False), side(5.0, after, real=False), reference)


def test_extremes_of_a_model_without_the_site_are_no_numbers():
    assert all(math.isnan(value) for value in extremes({"sites": []}))


def test_a_gate_named_without_fields_starts_as_the_identity(tmp_path):
    model = open_model(str(tiny_pretrained(tmp_path / "model")))
    batch = {"input_ids": torch.randint(5, 200, (2, 9))}
    before = model(**batch).last_hidden_state
    qf.apply_attention_(model, attention_for_pretrained("softmax", "linear"))
    torch.testing.assert_close(model(**batch).last_hidden_state, before, rtol=0.1, atol=0.1)
    assert attention_for_pretrained("softmax1", "none").gate is None


def test_fields_of_a_gate_leave_it_open():
    gate = attention_for_pretrained("", "mlp(hidden=8)").gate
    assert (gate.hidden, gate.scale * gate.pi_init) == (8, 1.0)
    gate = attention_for_pretrained("", "linear(pi_init=0.25)").gate
    assert (gate.pi_init, gate.scale) == (0.25, 4.0)


def test_attention_that_is_there_stays_unless_named():
    there = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=2), gate=qf.LinearGate(pi_init=0.3))
    assert attention_for_pretrained("", "", there) == there
    assert attention_for_pretrained("softmax1", "", there).gate == there.gate
    assert attention_for_pretrained("", "none", there) == qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=2))
    bare = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=2))
    assert attention_for_pretrained("", "", bare) == bare.model_copy(update={"gate": qf.LinearGate.for_pretrained()})


@pytest.mark.parametrize(
    ("better", "untrained", "trained", "told"),
    [("higher", 0.99, 0.98, True), ("higher", 0.98, 0.99, False), ("lower", 10.0, 12.0, True), ("lower", 12.0, 10.0, False),
     ("higher", 0.99, None, True), ("higher", None, 0.9, False), ("higher", 0.9, 0.9, False)],
)  # fmt: skip
def test_a_run_that_does_less_than_balancing_says_so(better, untrained, trained, told):
    reference = SimpleNamespace(evaluation=SimpleNamespace(primary="m", better=better))
    alone = {"per_channel": {"m": {"mean": untrained}}}
    after = {"simulated": {"per_channel": {"m": {"mean": trained}}}}
    assert ("more steps" in _against_balanced(alone, after, reference)) == told
    assert _against_balanced(None, after, reference) == ""
