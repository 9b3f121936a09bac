"""States of healthy runs that look unusual are taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.optimization import Adafactor

from quietformer.errors import QuietformerError
from quietformer.training.checkpoint_checks import SCALER, SCHEDULER, check_optimizer_state, check_scheduler_state

PATH = Path("checkpoint-5")


@pytest.mark.parametrize("scaled", [True, False])
def test_only_beside_a_scaler_a_scheduler_may_have_skipped_steps(tmp_path, scaled):
    if scaled:
        (tmp_path / SCALER).touch()
    for last in (0, 3, 5, 6, -1, None, "5"):
        state, path = {"last_epoch": last}, tmp_path / SCHEDULER
        if last == 5 or (scaled and last in (0, 3)):
            check_scheduler_state(state, 5, path)
        else:
            with pytest.raises(QuietformerError, match="not of step 5"):
                check_scheduler_state(state, 5, path)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor, Adafactor])
def test_the_own_state_of_an_optimizer_is_taken(kind):
    model = torch.nn.Linear(4, 3)
    optimizer = kind(model.parameters())
    model(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    check_optimizer_state(optimizer.state_dict(), optimizer, PATH)
