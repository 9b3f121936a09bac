"""States of healthy runs that look unusual are taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.optimization import Adafactor

from quietformer.errors import QuietformerError
from quietformer.training.checkpoint_checks import check_optimizer_state, check_scheduler_state

PATH = Path("checkpoint-5")


def test_a_scheduler_that_skipped_steps_in_fp16_is_of_this_step_or_before():
    for last in (0, 3, 5):
        check_scheduler_state({"last_epoch": last}, 5, PATH)
    for last in (6, -1, None, "5"):
        with pytest.raises(QuietformerError, match="not of step 5"):
            check_scheduler_state({"last_epoch": last}, 5, PATH)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor, Adafactor])
def test_the_own_state_of_an_optimizer_is_taken(kind):
    model = torch.nn.Linear(4, 3)
    optimizer = kind(model.parameters())
    model(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    check_optimizer_state(optimizer.state_dict(), optimizer, PATH)
