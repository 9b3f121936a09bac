"""A run that is lost stops, and says at which step, in which layer, and what to go back to."""

from __future__ import annotations

import math

import pytest
import torch

from quietformer.training.lost_run import DivergenceError, LossWatch, broken_layer
from quietformer.training.run import train
from tests.tiny_models import build, inputs
from tests.training.recipes import tiny_recipe, write_prose


@pytest.fixture
def prose(tmp_path):
    return write_prose(tmp_path / "text.txt")


def test_a_loss_that_is_not_finite_names_step_layer_and_checkpoint(prose, tmp_path, monkeypatch):
    from quietformer.training.trainer import QuietTrainer

    step = QuietTrainer.training_step

    def poisoned(self, model, batch, count=None):
        if self.state.global_step == 6:
            with torch.no_grad():
                model.bert.encoder.layer[1].output.dense.weight[0, 0] = math.nan
        return step(self, model, batch, count)

    monkeypatch.setattr(QuietTrainer, "training_step", poisoned)
    with pytest.raises(DivergenceError) as error:
        train(tiny_recipe("masked", prose), tmp_path / "run")
    message = str(error.value)
    assert "diverged at step 7" in message
    assert "bert.encoder.layer.1.output.dense.weight" in message
    assert f"the last good checkpoint is {tmp_path / 'run' / 'checkpoints' / 'checkpoint-4'}" in message
    assert "\n" not in message


def test_an_output_that_overflows_is_found_behind_finite_weights():
    model = build("bert")
    with torch.no_grad():
        model.bert.encoder.layer[0].intermediate.dense.weight.fill_(3e38)
    assert "bert.encoder.layer.0.intermediate.dense" in broken_layer(model, inputs("bert"))


def test_a_rate_that_is_far_too_high_is_noticed(prose, tmp_path):
    recipe = tiny_recipe(
        "masked", prose, optimizer={"learning_rate": 30.0, "max_grad_norm": 0.0}, schedule={"warmup_steps": 60},
        training={"steps": 200, "save_every": 20, "evaluate_every": 0, "explosion": 1.0},
    )  # fmt: skip
    with pytest.raises(
        DivergenceError, match=r"diverged at step \d+: .*encoder\.layer\.\d.*checkpoint.*smaller optimizer"
    ):
        train(recipe, tmp_path / "run")


def test_spikes_are_forgiven_and_explosions_are_not():
    watch = LossWatch(limit=2.0)
    calm = [5 * 0.99**step for step in range(200)]
    assert not any(watch.exploded(loss) for loss in calm)
    assert not watch.exploded(20.0)  # one step
    assert not any(watch.exploded(loss) for loss in calm[150:])
    assert any(watch.exploded(8.0) for _ in range(40))


def test_what_it_has_seen_is_kept_in_checkpoints():
    watch = LossWatch(limit=2.0)
    for loss in (5.0, 4.0, 3.0):
        watch.exploded(loss)
    again = LossWatch.from_state(watch.state())
    assert (again.limit, again.smoothed, again.best, again.steps) == (2.0, watch.smoothed, watch.best, 3)


def test_the_checkpoint_from_before_the_break_is_kept_and_named(prose, tmp_path, monkeypatch):
    from quietformer.training.trainer import QuietTrainer

    loss = QuietTrainer.compute_loss

    def rising(self, model, batch, *args, **kwargs):
        found = loss(self, model, batch, *args, **kwargs)
        broken = self.model.training and self.state.global_step >= 25
        return found + 6.0 if broken and not isinstance(found, tuple) else found

    monkeypatch.setattr(QuietTrainer, "compute_loss", rising)
    recipe = tiny_recipe(
        "masked", prose, training={"steps": 200, "save_every": 5, "evaluate_every": 0, "explosion": 3.0}
    )
    with pytest.raises(DivergenceError, match=r"the last good checkpoint is .*checkpoint-25"):
        train(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "checkpoint-25" / "config.json").is_file()
