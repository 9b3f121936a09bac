"""`convert`: a model with another attention, as a new folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from quietformer.architectures.patch_norm import add_patch_norm_
from quietformer.attention.inject import apply_attention_, attention_cores
from quietformer.config.attention import AttentionSpec, gates, normalizers
from quietformer.config.options.convert import ConvertOptions
from quietformer.config.recorded_changes import changes_of
from quietformer.data.tokenizers import tokenizer_of
from quietformer.errors import QuietformerError
from quietformer.models.open_any import gguf_file, only_pickled
from quietformer.models.save import write_folder
from quietformer.progress import SILENT, Progress
from quietformer.results.convert import ConvertReport
from quietformer.workflows.open_once import ModelName, check_new_folder, command_on, open_once


def convert(
    model: ModelName, out: str | os.PathLike[str], options: ConvertOptions, progress: Progress = SILENT
) -> ConvertReport:
    """Put another attention into a model and save it to a folder, as safetensors; what is not named stays as it is.

    A pretrained model changes with its attention: gates that start open, 'linear(scale=2, weight_std=0.01)', leave it nearly
    as it was; anything else needs fine-tuning.
    """
    out = Path(out)
    check_new_folder(out, model, overwrite=options.overwrite)
    named: dict[str, Any] = {"normalizer": normalizers.read(options.attention)} if options.attention else {}
    if options.gate:
        named["gate"] = None if options.gate == "none" else gates.read(options.gate)
    _check_changes(model, options)
    opened = open_once(model, options, progress, pickled=True)
    changed = opened.model
    before = sum(parameter.numel() for parameter in changed.parameters())
    spec = (changes_of(changed).attention or AttentionSpec()).model_copy(update=named)
    torch.manual_seed(options.seed)
    if named:
        apply_attention_(changed, spec)
    if options.patch_norm:
        add_patch_norm_(changed)
    progress.step(f"writing {out}")
    # The files of a folder are copied; those of a GGUF file have to be made.
    write_folder(changed, out, processor=tokenizer_of(opened.name) if gguf_file(opened.name) else None)
    return ConvertReport(
        model=opened.name,
        out=str(out),
        class_name=type(changed).__name__,
        attention=spec,
        patch_norm=options.patch_norm,
        seed=options.seed,
        layers=sum(1 for _ in attention_cores(changed)),
        parameters_before=before,
        parameters_added=sum(parameter.numel() for parameter in changed.parameters()) - before,
        bytes=sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        command=command_on([model], "convert", options, [out]),
    )


def _check_changes(model: ModelName, options: ConvertOptions) -> None:
    """Without an option only weights in another format have anything to be converted to."""
    if options.changes_something:
        return
    name = "" if isinstance(model, PreTrainedModel) else os.fspath(model)
    if not name or not (gguf_file(name) or only_pickled(Path(name))):
        raise QuietformerError(
            "nothing to change: give --attention, --gate or --patch-norm ('quietformer variants' lists them)"
        )
