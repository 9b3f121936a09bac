"""The model a workflow works on: opened once, whatever way the user names it."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from quietformer.analysis.task_quality import Original
from quietformer.architectures.forward import has_decoder
from quietformer.architectures.task import task_of
from quietformer.config.options.base import Options
from quietformer.config.options.opening import OpeningOptions
from quietformer.config.recorded_changes import changes_of
from quietformer.data.batches_from_options import KINDS
from quietformer.errors import QuietformerError, warn
from quietformer.files import check_new_place, clear_leftovers
from quietformer.models.check_folder import check_finite
from quietformer.models.open_any import open_model
from quietformer.models.pooling import pooling_of
from quietformer.progress import Progress
from quietformer.results.labels import printable
from quietformer.results.model import ModelInfo
from quietformer.results.provenance import command_line

ModelName = str | os.PathLike[str] | PreTrainedModel
"""A folder, a .gguf file, a hub id, 'minilm', or a model that is open already."""


@dataclass(frozen=True)
class OpenedModel(Original):
    """A model, the name it was opened by, what it is measured by, and the speech model that it is the encoder of."""

    @property
    def info(self) -> ModelInfo:
        attention = changes_of(self.model).attention
        return ModelInfo(
            name=printable(self.name),
            class_name=type(self.model).__name__,
            parameters=self.model.num_parameters(),
            attention=attention.label if attention else "softmax",
        )


def open_once(
    model: ModelName, options: OpeningOptions, progress: Progress, *, pickled: bool = False, whole: bool = False
) -> OpenedModel:
    """Open a model by its name; a model that is open already is copied, so that the user's stays as it is.

    Of a speech model with a decoder the encoder is worked on; all of it with `whole`, if it writes what it hears.
    """
    check_is_model(model)
    if isinstance(model, PreTrainedModel):
        opened, name = copy.deepcopy(model), str(model.config.name_or_path)
        check_finite(opened)
        opened.config.return_dict = True  # outputs are read by name
    else:
        name = os.fspath(model)
        progress.step(f"loading {name}")
        opened = open_model(name, trust_remote_code=options.trust_remote_code, pickled=pickled)
    if (settings := pooling_of(opened).settings) is not None and settings.other_modules:
        warn(
            f"{name} has modules past pooling ({', '.join(settings.other_modules)}); they stay in the folder as they are, and "
            "embeddings are measured before them"
        )
    if KINDS.get(opened.main_input_name) == "audio" and has_decoder(opened) and not (whole and opened.can_generate()):
        return _speech_encoder(opened, name)
    return OpenedModel(opened, name, task_of(opened))


def _speech_encoder(whole: PreTrainedModel, name: str) -> OpenedModel:
    """Of a speech model that writes what it hears, its encoder; the decoder stays in fp32 and shows what that is worth."""
    encoder: PreTrainedModel = copy.deepcopy(whole.get_encoder())
    encoder.config = copy.deepcopy(whole.config)
    return OpenedModel(encoder, name, task_of(encoder), whole if whole.can_generate() else None)


def check_is_model(model: object) -> None:
    """Refuse what is neither a name nor a model."""
    if not isinstance(model, str | os.PathLike | PreTrainedModel):
        raise QuietformerError(
            f"{type(model).__name__} is not a model; give a folder, a .gguf file, a hub id or an open transformers model"
        )


def command_on(models: Sequence[ModelName], verb: str, options: Options, arguments: Sequence[object] = ()) -> str:
    """What to type for the same result; empty if a model was open already, since no command can name it."""
    names = [os.fspath(model) for model in models if not isinstance(model, PreTrainedModel)]
    return command_line(verb, [*names, *arguments], options.words()) if len(names) == len(models) else ""


def check_new_folder(out: Path, model: ModelName, *, overwrite: bool) -> None:
    """Whether a folder can be written there, asked before the work."""
    check_is_model(model)
    check_new_place(out)
    clear_leftovers(out)
    if out.is_dir() and not isinstance(model, PreTrainedModel) and Path(model).is_dir() and out.samefile(model):
        raise QuietformerError(f"{out} is MODEL itself; choose another folder")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise QuietformerError(f"{out} exists already; choose another folder or pass --overwrite")
    if os.path.realpath(out) == os.getcwd():
        raise QuietformerError(f"{out} is the current folder; give the name of a new one")
