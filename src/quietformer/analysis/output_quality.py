"""What a model's answers are worth: likelihoods, predictions and embeddings, as pure functions of tensors."""

# B sequences, T tokens, V words of the vocabulary, C classes, d features, N whatever is compared

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from quietformer.data.token_labels import IGNORED
from quietformer.models.pooling import Pooling

CHUNK = 2**22
"""So many logits are turned into float64 at a time: 32 MB, however large the vocabulary."""

BROKEN = -1
"""The prediction where logits are NaN or infinite; it agrees with nothing."""

TIE = 1e-6
"""Two neighbours this close in cosine are equally near; float32 does not tell them apart."""


def token_scores(logits_BTV: Tensor, labels_BT: Tensor) -> tuple[float, Tensor]:
    """Sum of the negative log-likelihoods of all labelled tokens in float64, and what is predicted in their places."""
    places = (labels_BT != IGNORED).nonzero()
    total, predictions = 0.0, []
    for some in torch.split(places, max(1, CHUNK // logits_BTV.shape[-1])):
        row, column = some.unbind(1)
        logits = logits_BTV[row.to(logits_BTV.device), column.to(logits_BTV.device)].cpu().double()
        targets = labels_BT[row, column].cpu()
        total += float((logits.logsumexp(-1) - logits.gather(-1, targets[:, None])[:, 0]).sum())
        predictions.append(predicted(logits))
    return total, torch.cat(predictions) if predictions else torch.zeros(0, dtype=torch.int64)


def perplexity(loss: float) -> float:
    """exp(loss), infinite where the loss is NaN or too large: a model that broke has no likelihoods."""
    try:
        return math.inf if math.isnan(loss) else math.exp(loss)
    except OverflowError:
        return math.inf


def predicted(logits_NC: Tensor) -> Tensor:
    """The class of each row; a single logit says yes or no by its sign."""
    top, index = logits_NC.max(-1)
    index = (top > 0).long() if logits_NC.shape[-1] == 1 else index
    return index.masked_fill(~top.isfinite(), BROKEN).cpu()


def agreement(tested_N: Tensor, reference_N: Tensor) -> float:
    """Share of predictions that are the same."""
    return float(((tested_N == reference_N) & (tested_N != BROKEN)).double().mean())


def pooled(hidden: Tensor, mask_BT: Tensor | None, pooling: Pooling) -> Tensor:
    """One embedding a sequence or image, in float64."""
    return pooling(hidden.cpu().double(), mask_BT)


def row_cosines(one_Nd: Tensor, other_Nd: Tensor) -> Tensor:
    """Of each row to the same row of the other, in float64."""
    return torch.nn.functional.cosine_similarity(one_Nd.double(), other_Nd.double(), dim=-1)


def mean_cosine(tested_Nd: Tensor, reference_Nd: Tensor) -> float:
    return float((_unit(tested_Nd) * _unit(reference_Nd)).sum(-1).mean())


def neighbour_agreement(tested_Nd: Tensor, reference_Nd: Tensor) -> float:
    """Share of embeddings whose nearest other one is the same in both; ties of the reference count as the same."""
    tested, reference = _unit(tested_Nd), _unit(reference_Nd)
    agreed = 0
    for rows in torch.split(torch.arange(len(tested)), 1024):  # a square of all would not fit for many sequences
        found, nearest = _similarities(tested, rows).max(1)
        known = _similarities(reference, rows)
        best = known.max(1).values
        same = known.gather(1, nearest[:, None])[:, 0] >= best - TIE
        agreed += int((same & found.isfinite() & best.isfinite()).sum())
    return agreed / len(tested)


def known_item_ndcg(queries_Nd: Tensor, documents_Nd: Tensor, first: int = 10) -> float:
    """NDCG of the first ten documents by cosine, where the one relevant document of a query is that of its row.

    1 / log2(1 + rank) of the document, zero past the first ten; one that is as near as it counts as nearer.
    """
    queries, documents = _unit(queries_Nd), _unit(documents_Nd)
    total = 0.0
    for rows in torch.split(torch.arange(len(queries)), 1024):
        cosines = queries[rows] @ documents.T
        own = cosines[torch.arange(len(rows)), rows]
        rank = (cosines >= own[:, None]).sum(1)
        found = own.isfinite() & (rank <= first)
        total += float((1 / torch.log2(1.0 + rank[found])).sum())
    return total / len(queries)


def word_error_rate(written: list[str], spoken: list[str]) -> float:
    """Words to insert, delete and replace for one text to become the other, as a share of the words that were spoken."""
    pairs = [(_words(text), _words(said)) for text, said in zip(written, spoken, strict=True)]
    return sum(_edits(text, said) for text, said in pairs) / max(1, sum(len(said) for _, said in pairs))


def _words(text: str) -> list[str]:
    """Without case and punctuation, in which transcripts differ."""
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.casefold())


def _edits(one: list[str], other: list[str]) -> int:
    """Levenshtein's distance, row by row."""
    above = list(range(len(other) + 1))
    for place, word in enumerate(one, start=1):
        row = [place]
        for column, against in enumerate(other, start=1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (word != against)))
        above = row
    return above[-1]


def _similarities(unit_Nd: Tensor, rows: Tensor) -> Tensor:
    """Cosines of some rows to all; never the row itself, nor one that is broken."""
    cosines = (unit_Nd[rows] @ unit_Nd.T).nan_to_num(nan=-math.inf)
    cosines[torch.arange(len(rows)), rows] = -math.inf
    return cosines


def _unit(x_Nd: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x_Nd, dim=-1)
