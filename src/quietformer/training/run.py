"""A recipe carried out: data, model, Trainer, and a folder that says all about it."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, TrainingArguments

from quietformer.analysis.bigram import bigram_perplexity
from quietformer.analysis.inspection import inspect_model
from quietformer.architectures.forward import Batch
from quietformer.architectures.task import task_of
from quietformer.config.recipe import Recipe, Source
from quietformer.config.tasks import MeasuredTask
from quietformer.data.collate import Collate
from quietformer.data.fingerprint_file import check_data
from quietformer.data.model_inputs import check_length, image_size
from quietformer.data.training_data import TrainingData, collate_for, takes_images, training_data
from quietformer.errors import QuietformerError, SpecError, in_one_line
from quietformer.files import finite, write_json
from quietformer.models.open import open_model
from quietformer.models.quiet_transformers import quiet_transformers
from quietformer.training.arguments import set_sizes_, shard_blocks_, steps_of, training_arguments
from quietformer.training.best import BestWatch, gave_up_at
from quietformer.training.callbacks import OutlierCallback, WarmupCallback
from quietformer.training.checkpoints import checkpoint_before, clear_leftovers, keep_last, last_checkpoint
from quietformer.training.clock import Clock
from quietformer.training.distillation import (
    FLOAT,
    INTEGER,
    ImitationTrainer,
    RoundingCallback,
    as_floating_point,
    calibration_of,
    freeze_embeddings_,
    quality_of,
    student_of,
)
from quietformer.training.divergence import LossWatch
from quietformer.training.interrupt import StopOnSignal, StoppedError
from quietformer.training.model_building import build_model
from quietformer.training.model_config import make_config
from quietformer.training.progress import ProgressCallback
from quietformer.training.run_folder import (
    FIGURES,
    check_run,
    check_space,
    finished_figures,
    only_writer,
    start,
    write_final_model,
)
from quietformer.training.schedule import warmup_steps
from quietformer.training.trainer import QuietTrainer, unwritable
from quietformer.transforms.balance import balance_

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)

LOOKS = 10
"""So often at the least outliers are looked at in a run."""

INSPECTED = 64
"""Validation examples whose activations are looked at when the run ends."""

BIGRAM_SEQUENCES = 50_000
"""Training sequences that are counted for the bigram model to compare with."""

VERSIONS = ("quietformer", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors")


def train(recipe: Recipe, run: Path, *, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Train, or go on training, in a folder; gives the figures, which are also in the folder.

    Started in several processes (torchrun, accelerate launch) they share the work; the first one writes.
    """
    recipe = with_absolute_paths(recipe)
    check_run(run, recipe)
    if (figures := finished_figures(run)) is not None:
        say(f"{run} is finished; nothing to do")
        return figures
    arguments = training_arguments(recipe, run)
    first = arguments.process_index == 0
    with only_writer(run) if first else contextlib.nullcontext():
        try:
            with quiet_transformers():
                return _train(recipe, run, arguments, say)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise unwritable(run, error) from error
            raise


def _train(recipe: Recipe, run: Path, arguments: TrainingArguments, say: Callable[[str], None]) -> dict[str, Any]:
    if arguments.fsdp and arguments.world_size == 1:
        raise SpecError("trainer.fsdp shares a model among processes and there is one; start with torchrun")
    if arguments.process_index == 0:
        start(run, recipe)
    teacher = open_model(recipe.model.pretrained) if recipe.task == "imitate" else None
    if teacher is not None and not takes_images(recipe):
        check_length(teacher, recipe.data.length)
    if teacher is None:
        make_config(recipe)  # mistakes in it are found before the data is read
    if recipe.training.precision == "fp16" and not arguments.fp16:
        say("fp16 needs a GPU; training in fp32 here")
    say(f"reading {', '.join(source.name for source in recipe.data.train)}")
    with arguments.main_process_first(desc="data"):  # the others find what the first has cached
        data = training_data(recipe, run, image_shape=_image_shape(recipe, teacher))
    if arguments.process_index == 0:
        check_data(run, data.fingerprint)
    steps = steps_of(recipe, data.examples)
    set_sizes_(arguments, recipe, steps)
    resumed = last_checkpoint(run)
    if teacher is not None and recipe.model.balance:
        # The teacher too, so that hidden states are compared in the same units; it computes what it did.
        balance_(teacher, _calibration(recipe, data, teacher), alpha=recipe.model.balance)
    model = open_or_build(recipe, data, resumed, teacher)
    if recipe.optimizer.freeze_embeddings:
        freeze_embeddings_(model)
    shard_blocks_(arguments, model)
    if arguments.process_index == 0:
        check_space(run, sum(parameter.numel() for parameter in model.parameters()), recipe.training.keep)
    try:
        trainer, progress = make_trainer(recipe, run, arguments, model, data, steps, teacher)
    except (RuntimeError, ImportError, TypeError) as error:  # trackers and kernels that are not installed
        raise SpecError(f"the Trainer does not take this recipe: {in_one_line(error)}") from error
    say(_summary(model, data, recipe, steps))
    if trainer.warmup >= steps:
        say(
            f"the warm-up of {trainer.warmup} steps is as long as the run or longer: the full learning rate is never reached"
        )
    stop = StopOnSignal(say)
    trainer.add_callback(stop)
    try:
        if resumed is not None and (known := gave_up_at(resumed)) is not None:
            _restore_(trainer, resumed, known)
        else:
            with stop.listening():
                trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
        gave_up = isinstance(trainer, ImitationTrainer) and trainer.best.gave_up
        if gave_up:
            say(
                f"no evaluation has been better for a while: stopped at step {trainer.state.global_step:,} of {steps:,}"
            )
        elif trainer.state.global_step < steps:
            raise StoppedError(
                f"stopped at step {trainer.state.global_step} of {steps}; the same command goes on from there"
            )
        metrics = trainer.evaluate()
    finally:
        progress.close()
    return _finish(recipe, run, trainer, data, metrics, trainer.state.global_step, say)


def _restore_(trainer: QuietTrainer, checkpoint: Path, known: dict[str, Any]) -> None:
    """A run that had given up when it was killed trains no further."""
    assert isinstance(trainer, ImitationTrainer)
    trainer.state = transformers.TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    vars(trainer.best).update(known)
    callbacks: Any = trainer.state.stateful_callbacks
    trainer.clock.before = callbacks[Clock.__name__]["attributes"]["before"]


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Files named as from here, so that the run can be gone on with from anywhere."""

    def absolute(source: Source) -> Source:
        if not source.path or not glob(os.path.expanduser(source.path), recursive=True):
            return source  # what is not there is named as it was given
        return source.model_copy(update={"path": os.path.abspath(os.path.expanduser(source.path))})

    data = recipe.data
    update = {"train": tuple(map(absolute, data.train)), "validation": tuple(map(absolute, data.validation))}
    model, words = recipe.model, recipe.tokenizer
    return recipe.model_copy(
        update={
            "data": data.model_copy(update=update),
            "model": model.model_copy(update={"pretrained": _absolute_folder(model.pretrained)}),
            "tokenizer": words.model_copy(update={"pretrained": _absolute_folder(words.pretrained)}),
        }
    )


def _absolute_folder(name: str) -> str:
    return os.path.abspath(name) if name and os.path.exists(name) else name


def _image_shape(recipe: Recipe, teacher: PreTrainedModel | None) -> tuple[int, int]:
    if not takes_images(recipe):
        return (0, 0)
    return image_size(make_config(recipe) if teacher is None else teacher)


def open_or_build(
    recipe: Recipe, data: TrainingData, resumed: Path | None, teacher: PreTrainedModel | None = None
) -> PreTrainedModel:
    """As the recipe describes it, or as the checkpoint has it."""
    from quietformer.data.tokenizers import special_ids

    if resumed is not None:
        return open_model(str(resumed))
    if teacher is not None:
        return student_of(teacher, recipe, lambda: _calibration(recipe, data, teacher))
    return build_model(
        recipe,
        vocabulary=None if data.tokenizer is None else len(data.tokenizer),
        labels=data.classes,
        special_tokens=None if data.tokenizer is None else special_ids(data.tokenizer),
    )


def _calibration(recipe: Recipe, data: TrainingData, teacher: PreTrainedModel) -> list[Batch]:
    task = task_of(teacher)
    vocabulary = 0 if takes_images(recipe) else _vocabulary(teacher)
    return calibration_of(recipe, data, collate_for(recipe, data, vocabulary, seed=recipe.seed, imitated=task), task)


def make_trainer(
    recipe: Recipe, run: Path, arguments: TrainingArguments, model: PreTrainedModel, data: TrainingData, steps: int,
    teacher: PreTrainedModel | None = None,
) -> tuple[QuietTrainer, ProgressCallback]:  # fmt: skip
    training = recipe.training
    words = recipe.task in ("masked", "causal")
    per_step = training.batch_size * (recipe.data.length if words else 1)
    progress = ProgressCallback(words=words, unit="tokens" if words else data.described["unit"], per_step=per_step)
    examples = data.examples or steps * training.batch_size
    vocabulary = 0 if takes_images(recipe) else _vocabulary(model)
    imitated = None if teacher is None else task_of(teacher)
    collate = collate_for(recipe, data, vocabulary, seed=recipe.seed, imitated=imitated)
    kind, more, callbacks = _imitation(recipe, data, collate, teacher, imitated, steps)
    trainer = kind(
        model, arguments, recipe, run,
        warmup=warmup_steps(recipe.schedule, examples / training.batch_size),
        train_dataset=data.training_set(steps * training.batch_size, recipe.seed, training.batch_size),
        eval_dataset=data.validation_set(),
        data_collator=collate,
        processing_class=data.tokenizer,
        callbacks=[WarmupCallback(), Clock(), LossWatch(training.explosion), *callbacks, progress],
        **more,
    )  # fmt: skip
    trainer.remove_callback(transformers.PrinterCallback)
    if training.outliers_every and not training.compile:
        # A run shorter than the interval would have one figure, from before its first step.
        OutlierCallback(every=min(training.outliers_every, max(1, steps // LOOKS))).attach_(trainer)
    if recipe.rounding.share:
        assert isinstance(trainer, ImitationTrainer)
        # Before all others: what watches the attention of a step must find the taps it will use.
        rounding = RoundingCallback(recipe.rounding, trainer.quality.calibration, model, steps)
        trainer.callback_handler.callbacks.insert(0, rounding)
    return trainer, progress


def _imitation(
    recipe: Recipe, data: TrainingData, collate: Collate, teacher: PreTrainedModel | None, task: MeasuredTask | None,
    steps: int,
) -> tuple[type[QuietTrainer], dict[str, Any], list[transformers.TrainerCallback]]:  # fmt: skip
    """The kind of trainer, what it needs besides, and who listens to it."""
    if teacher is None or task is None:
        return QuietTrainer, {}, []
    quality = quality_of(recipe, data, collate, teacher, task)
    until = steps - round(recipe.rounding.share * steps) if recipe.rounding.share else 0
    callbacks: list[transformers.TrainerCallback] = [
        BestWatch(INTEGER, quality.better, recipe.training.patience, patient_until=until)
    ]
    return ImitationTrainer, {"teacher": teacher, "quality": quality}, callbacks


def _summary(model: PreTrainedModel, data: TrainingData, recipe: Recipe, steps: int) -> str:
    size = sum(parameter.numel() for parameter in model.parameters())
    amount = "a stream" if data.examples is None else f"{data.examples:,} {data.described['unit']}"
    epochs = "" if not data.examples else f" ({steps * recipe.training.batch_size / data.examples:.2g} epochs)"
    return (
        f"{recipe.name}: {type(model).__name__}, {size / 1e6:.2f}M parameters, {recipe.attention.label}; {amount}, "
        f"{steps:,} steps of {recipe.training.batch_size}{epochs}"
    )


def _finish(
    recipe: Recipe, run: Path, trainer: QuietTrainer, data: TrainingData, metrics: dict[str, float], steps: int,
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """The model into the run folder, looked at once more, and the figures beside it."""
    state = trainer.whole_state()
    best = trainer.best if isinstance(trainer, ImitationTrainer) else None
    figures = {
        "kind": "train",
        "recipe": recipe.name,
        "attention": recipe.attention.label,
        "seed": recipe.seed,
        "steps": steps,
        "data": data.described,
        "validation": {name.removeprefix("eval_"): value for name, value in metrics.items() if _is_measure(name)},
        "seconds": trainer.clock.seconds,
        "steps_per_second": steps / max(trainer.clock.seconds, 1e-9),
        "processes": trainer.args.world_size,
        "paper": recipe.paper,
        "log": trainer.state.log_history,
        "versions": {name: importlib.metadata.version(name) for name in VERSIONS}
        | {"python": platform.python_version()},
        "command": ["quietformer", *sys.argv[1:]],
    }
    if trainer.args.process_index == 0:
        say("writing the model and looking at it")
        final = trainer._inner()
        if best is not None:
            figures["best"] = {"step": best.step, "value": best.value, "measure": trainer.quality.primary}  # type: ignore[attr-defined]
            if best.step is not None:
                say(f"the best evaluation was that of step {best.step:,}, which is what is kept")
            if best.step not in (None, steps) and (kept := checkpoint_before(run, best.step)) is not None:
                final = open_model(str(kept))
            as_floating_point(final, recipe.attention)
        write_final_model(final, run, data.tokenizer, state)
        model = open_model(str(run))
        figures["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        figures["outliers"] = _headline(model, trainer)
        figures |= _bigram(recipe, data, model)
        if (majority := data.majority) is not None:
            figures["majority_accuracy"] = majority
        clear_leftovers(run)
        keep_last(run, recipe.training.keep)
        figures = finite(figures)
        write_json(run / FIGURES, figures)
    trainer.accelerator.wait_for_everyone()
    return figures


def _is_measure(name: str) -> bool:
    return name in ("eval_nll", "eval_perplexity", "eval_accuracy", FLOAT, INTEGER)


def _headline(model: PreTrainedModel, trainer: QuietTrainer) -> dict[str, Any]:
    """Infinity norm and kurtosis as the paper defines them, on validation data."""
    rows: Any = trainer.eval_dataset
    collate: Any = trainer.data_collator
    batches = []
    for begin in range(0, min(INSPECTED, len(rows)), 8):
        batch = collate([rows[index] for index in range(begin, min(begin + 8, INSPECTED, len(rows)))])
        if "pixel_values" in batch:
            batch["pixel_values"] = batch["pixel_values"] * 2 - 1
        batches.append({name: value for name, value in batch.items() if name not in ("labels", "positions")})
    try:
        headline: dict[str, Any] = inspect_model(model, batches).headline.model_dump()
    except QuietformerError as error:  # a family whose blocks are not known trains all the same
        return {"unknown": str(error)}
    return headline


def _bigram(recipe: Recipe, data: TrainingData, model: PreTrainedModel) -> dict[str, float]:
    """What a table of pairs makes of the same validation text."""
    if recipe.task not in ("masked", "causal") or data.examples is None:
        return {}
    count = min(BIGRAM_SEQUENCES, data.examples)
    rows: Any = data.rows
    chunks = (range(begin, min(begin + 1000, count)) for begin in range(0, count, 1000))
    train = [row["input_ids"] for chunk in chunks for row in rows.take(chunk, None)]
    asked = [row["input_ids"] for row in data.validation.take(range(len(data.validation)), None)]
    never = data.tokenizer.all_special_ids if recipe.task == "masked" else ()
    found = bigram_perplexity(train, asked, vocabulary=_vocabulary(model), never_asked=never)
    return {"bigram_perplexity": found}


def _vocabulary(model: PreTrainedModel) -> int:
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])
