"""An exported folder as a SentenceTransformer: our graph, with the prompts and the similarity that the folder says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from quietformer.deployment.onnx_model import OnnxModel
from quietformer.errors import QuietformerError, in_one_line
from quietformer.results.export import RuntimeName

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def sentence_transformer(
    folder: str | os.PathLike[str],
    *,
    runtime: RuntimeName | None = None,
    file: str | None = None,
    threads: int | None = None,
) -> SentenceTransformer:
    """`SentenceTransformer` with `OnnxModel(folder)` as its module: it reads prompts and similarity from its arguments alone."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise QuietformerError(
            f"sentence-transformers is not installed ({in_one_line(error)}); pip install sentence-transformers"
        ) from None
    module = OnnxModel(folder, runtime=runtime, file=file, threads=threads)
    module.check_embeds()
    settings = module.settings
    return SentenceTransformer(
        modules=[module],
        device="cpu",
        prompts=dict(settings.prompts),
        default_prompt_name=settings.default_prompt_name,
        similarity_fn_name=settings.similarity,
    )
