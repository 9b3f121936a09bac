"""What a search is judged by: sequences that no range comes from, and how far a model's output is from the exact one."""

# N tokens or sequences, d features of a token or classes of a sequence

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import output_of
from quietformer.analysis.output_quality import row_cosines
from quietformer.architectures.forward import Batch, token_rows
from quietformer.data.token_labels import IGNORED


def main_input(batch: Batch) -> Tensor:
    return next(iter(batch.values()))


def fresh(judges: list[Batch], calibration: list[Batch]) -> list[Batch]:
    """Batches without the rows that are in the calibration data; none if all of them are."""
    seen = {row.numpy().tobytes() for batch in calibration for row in _as_it_was(batch)}
    found = []
    for batch in judges:
        rows = [place for place, row in enumerate(_as_it_was(batch)) if row.numpy().tobytes() not in seen]
        if rows:
            found.append({name: tensor[rows] for name, tensor in batch.items()})
    return found


def _as_it_was(batch: Batch) -> Tensor:
    """The main input with the tokens that were masked: each draw masks the same text elsewhere."""
    given, labels = main_input(batch), batch.get("labels")
    if labels is None or labels.shape != given.shape:
        return given
    return torch.where(labels == IGNORED, given, labels)


def main_output(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits or hidden states, one row a token, image or sequence, without padding."""
    result = output_of(model, batch)
    output: Tensor = result["logits"] if "logits" in result else result["last_hidden_state"]
    return token_rows(batch, output).float()


def output_error(found: Sequence[Tensor], exact: Sequence[Tensor], *, classes: bool) -> float:
    """1 - cosine of the rows (N, d), averaged; of classes the squared distance, relative to the spread of the exact rows.

    A cosine says next to nothing of one or two logits. Output that is no number is infinitely far away.
    """
    if classes:
        ours_Nd, theirs_Nd = torch.cat(list(found)).double(), torch.cat(list(exact)).double()
        spread = (theirs_Nd - theirs_Nd.mean(0)).square().sum()
        error = float((ours_Nd - theirs_Nd).square().sum() / spread.clamp(min=torch.finfo(torch.float64).tiny))
    else:
        rows = [1 - row_cosines(ours, theirs) for ours, theirs in zip(found, exact, strict=True)]
        error = float(torch.cat(rows).mean())
    return math.inf if math.isnan(error) else error
