"""What models are trained for and measured by: one vocabulary."""

from __future__ import annotations

from typing import Literal, get_args

TrainedTask = Literal["masked", "causal", "pairs", "images", "distill"]
"""What a recipe trains: masked or causal language models, classifiers of pairs or images, or a student of its own original."""

MeasuredTask = Literal["masked", "causal", "classes", "images", "embedding"]
"""How a model is measured: perplexity of masked or next tokens, agreement of classes, top-1 of images, embeddings."""

METRICS: dict[MeasuredTask, tuple[str, ...]] = {
    "masked": ("perplexity", "loss", "token_agreement"),
    "causal": ("perplexity", "loss", "token_agreement"),
    "embedding": ("cosine", "neighbour_agreement", "ndcg10", "wer"),
    "classes": ("top1", "agreement", "wer"),
    "images": ("top1", "agreement"),
}
"""What a model of a task can be measured by; on some data, only by some of these."""

TRAINED: tuple[str, ...] = get_args(TrainedTask)
MEASURED: tuple[str, ...] = get_args(MeasuredTask)
