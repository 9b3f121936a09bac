"""The learning rate against the schedules of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from quietformer.config.optimization import ScheduleRecipe
from quietformer.training.schedule import rate_factor, warmup_steps


@pytest.mark.parametrize(
    ("shape", "theirs"), [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)]
)
@pytest.mark.parametrize("warmup", [0, 7])
def test_the_plain_shapes_are_those_of_transformers(shape, theirs, warmup):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = theirs(optimizer, warmup, 50)
    for step in range(50):
        ours = rate_factor(step, ScheduleRecipe(shape=shape), peak=0.5, warmup=warmup, total=50)
        assert 0.5 * ours == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        schedule.step()


def test_it_starts_and_ends_where_it_is_told():
    schedule = ScheduleRecipe(shape="cosine", warmup_epochs=2, warmup_from=1e-6, final=1e-5)
    warmup = warmup_steps(schedule, 10)
    rates = [1e-3 * rate_factor(step, schedule, peak=1e-3, warmup=warmup, total=100) for step in range(101)]
    assert warmup == 20
    assert rates[0] == pytest.approx(1e-6)
    assert max(rates) == pytest.approx(rates[20]) == pytest.approx(1e-3)
    assert rates[100] == pytest.approx(1e-5)


def test_it_holds_before_it_falls():
    schedule = ScheduleRecipe(shape="linear", hold=0.5)
    rates = [rate_factor(step, schedule, peak=1.0, warmup=10, total=100) for step in range(101)]
    assert rates[10:50] == [1.0] * 40
    assert rates[75] == pytest.approx(0.5)
    assert rates[100] == 0.0
