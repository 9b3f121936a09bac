"""The Hugging Face Trainer, told of our data, our losses and our checkpoints; the loop is its own."""

# B examples, T tokens, V words or classes

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import IterableDataset, SequentialSampler
from transformers import PreTrainedModel, Trainer, TrainingArguments

from quietformer.config.optimization import MUON
from quietformer.config.recipe import Recipe
from quietformer.data.augment import BatchAugment
from quietformer.data.image_batches import as_models_take
from quietformer.data.row_order import BATCHES, generator
from quietformer.data.token_labels import IGNORED
from quietformer.errors import QuietformerError, in_one_line
from quietformer.files import free_in_words
from quietformer.models.save import write_folder
from quietformer.results import numbers
from quietformer.training.checkpoint_checks import (
    OPTIMIZER,
    SCALER,
    SCHEDULER,
    check_optimizer_state,
    check_scheduler_state,
    loading,
)
from quietformer.training.checkpoints import (
    FOLDER,
    STAGING,
    checkpoint_before,
    clear_leftovers,
    keep_last,
    last_checkpoint,
    publish,
    step_of,
)
from quietformer.training.clock import Clock
from quietformer.training.example_scores import aligned, example_scores, metrics_for
from quietformer.training.lost_run import DivergenceError, LossWatch, broken_layer, loudest_layer
from quietformer.training.optimizers import (
    MuonAndAdamW,
    Rates,
    block_matrices,
    is_norm,
    own_groups,
    parameter_groups,
    tie_gains_,
)
from quietformer.training.schedule import rate_factor
from quietformer.training.sharding import embeddings_in_root, gathered, sharded_optimizer_state
from quietformer.training.state_files import random_states, read_tree, set_random_states, write_tree


class QuietTrainer(Trainer):
    """A Trainer whose runs are a function of the recipe, whose checkpoints are whole, and which knows when it is lost."""

    model: Any  # as the Trainer has them: one or the other at different times of its life
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: PreTrainedModel,
        arguments: TrainingArguments,
        recipe: Recipe,
        run: Path,
        *,
        warmup: int,
        **rest: Any,
    ) -> None:
        self.recipe, self.run_folder, self.warmup = recipe, run, warmup
        self._step_loss = 0.0
        self._augment = (
            BatchAugment(recipe.augment, int(model.config.num_labels or 0)) if recipe.task == "images" else None
        )
        super().__init__(
            model=model, args=arguments, compute_loss_func=self._loss, compute_metrics=metrics_for(recipe.task), **rest
        )
        self._regularizers = [spec.build(model) for spec in recipe.regularizers]
        self._untie = tie_gains_(model) if recipe.optimizer.single_scale_norms else None

    def create_accelerator_and_postprocess(self) -> None:
        """Accelerate shards over GPUs alone and is silent about it elsewhere; torch shards over CPU processes as well."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp and not self.is_fsdp_enabled and state.distributed_type == DistributedType.MULTI_CPU:
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        with embeddings_in_root(self.model) if self.is_fsdp_enabled else contextlib.nullcontext():
            return super()._prepare_for_training(*args, **kwargs)  # type: ignore[no-untyped-call]

    # The data comes in the order it is to be taken in.
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        return None if isinstance(dataset, IterableDataset) else SequentialSampler(dataset)

    # Losses

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Images are augmented here, where they already are on the device."""
        prepared: dict[str, Any] = super()._prepare_inputs(inputs)
        if (positions := prepared.pop("positions", None)) is not None:
            pixels, labels = prepared["pixel_values"], prepared["labels"]
            if self.model.training and self._augment is not None:
                seed = int(generator(self.recipe.seed, BATCHES, int(positions[0])).integers(2**62))
                pixels, labels = self._augment(pixels, labels, seed=seed)
            prepared |= {"pixel_values": as_models_take(pixels), "labels": labels}
        return prepared

    def _loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The sum over what is asked for, divided by how much that is in the whole step, on all devices.

        Computed here and not in the models, some of which divide by what is in the micro-batch: then accumulating
        gradients, or sharing a batch among processes, changes the loss.
        """
        logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        if labels.is_floating_point():
            total = -(labels * torch.log_softmax(logits.float(), dim=-1)).sum()
            return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)
        logits, labels = aligned(logits, labels, self.recipe.task)
        total = nn.functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
        count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        # A small batch may have nothing masked: then there is nothing to learn from it, and no reason to divide by zero.
        return total / (count.clamp(min=1) if isinstance(count, Tensor) else max(1, count))

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        found = super().compute_loss(model, inputs, *args, **kwargs)
        if not self._regularizers:
            return found
        loss = found[0] if isinstance(found, tuple) else found
        for regularizer in self._regularizers:
            # The loss is already divided by all of the step's tokens; a term is a mean of its micro-batch.
            if (term := regularizer.term()) is not None:
                loss = loss + term / self.current_gradient_accumulation_steps
        return (loss, *found[1:]) if isinstance(found, tuple) else loss

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = super().training_step(model, dict(inputs), num_items_in_batch)
        self._step_loss += float(loss)
        if self.accelerator.sync_gradients:
            total, self._step_loss = self._step_loss, 0.0
            self._judge(total, inputs)
        return loss

    def _judge(self, loss: float, inputs: Any) -> None:
        """Stop a lost run. All processes judge by the same number, or one would stop while the others wait for it."""
        if self.args.world_size > 1:
            loss = float(self.accelerator.reduce(torch.tensor(loss, device=self.args.device), reduction="mean"))
        if not math.isfinite(loss):
            where = broken_layer(self._inner(), self._forward_inputs(inputs))
            raise self._lost(f"the loss is {loss} and {where}")
        if self._watch.exploded(loss):
            where = loudest_layer(self._inner(), self._forward_inputs(inputs))
            raise self._lost(
                f"the loss has risen to {numbers.rough(loss)}, its smoothed best was {numbers.rough(self._watch.best)}; {where}"
            )

    @property
    def _watch(self) -> LossWatch:
        """Looked up each time: resuming from a checkpoint replaces it."""
        return next(item for item in self.callback_handler.callbacks if isinstance(item, LossWatch))

    @property
    def clock(self) -> Clock:
        """Looked up each time: resuming from a checkpoint replaces it."""
        return next(item for item in self.callback_handler.callbacks if isinstance(item, Clock))

    def _forward_inputs(self, inputs: Any) -> dict[str, Any]:
        return {name: value for name, value in self._prepare_inputs(dict(inputs)).items() if name != "labels"}

    def _lost(self, why: str) -> DivergenceError:
        last = checkpoint_before(self.run_folder, self._watch.best_step)
        good = f"the last good checkpoint is {last}" if last else "there is no checkpoint from before"
        return DivergenceError(
            f"the run diverged at step {self.state.global_step + 1}: {why}; {good}; "
            "try a smaller optimizer.learning_rate or a longer warm-up"
        )

    def _inner(self) -> PreTrainedModel:
        inner: PreTrainedModel = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        return inner

    def released_model(self) -> PreTrainedModel:
        """The trained model as if it had just been opened: on the CPU, in eval mode, without what training put around it."""
        for regularizer in self._regularizers:
            regularizer.detach_()
        if self._untie is not None:
            self._untie()
        model: Any = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False, keep_torch_compile=False)
        if not self.is_fsdp_enabled:
            model.zero_grad(set_to_none=True)
            model.requires_grad_(True).eval().to("cpu")
        released: PreTrainedModel = model
        return released

    # Evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the Trainer's, but how often it is done changes nothing: making a loader draws from the global generator."""
        states = random_states()
        try:
            found: dict[str, float] = super().evaluate(*args, **kwargs)
        finally:
            set_random_states(states)
        return found

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For each example: the sum of its losses, how many they are, and how many predictions are right."""
        prepared = self._prepare_inputs(inputs)
        labels = prepared.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**prepared)
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        scores_B3 = example_scores(logits, labels, self.recipe.task)
        return scores_B3[:, 0].sum() / scores_B3[:, 1].sum().clamp(min=1), scores_B3, scores_B3[:, :1]

    # The optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        names: list[str] = super().get_decay_parameter_names(model)
        if self.recipe.optimizer.decay_norms:
            for prefix, module in model.named_modules():
                if is_norm(module) and isinstance(getattr(module, "weight", None), nn.Parameter):
                    names.append(f"{prefix}.weight")
        return names

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As the Trainer's, with learning rates of their own for gates and sinks, and for norms, if the recipe asks for it."""
        chosen: Any = self.model if model is None else model
        try:
            return self._optimizer(chosen)
        except (ImportError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise QuietformerError(
                f"the optimizer {self.recipe.optimizer.name} cannot be made: {in_one_line(error, 200)}"
            ) from error

    def _optimizer(self, chosen: Any) -> torch.optim.Optimizer:
        wanted = self.recipe.optimizer
        if own_groups(wanted) and self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, chosen)
            muon = wanted.name == MUON
            matrices = block_matrices(self._inner()) if muon else frozenset()
            groups = parameter_groups(
                chosen, Rates(wanted, frozenset(self.get_decay_parameter_names(chosen)), matrices)
            )
            self.optimizer = (
                MuonAndAdamW(groups, lambda others: kind(others, **options)) if muon else kind(groups, **options)
            )
        optimizer: torch.optim.Optimizer = super().create_optimizer(chosen)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        if self.lr_scheduler is None:
            schedule, peak, warmup = self.recipe.schedule, self.recipe.optimizer.learning_rate, self.warmup

            def factor(step: int) -> float:
                return rate_factor(step, schedule, peak=peak, warmup=warmup, total=num_training_steps)

            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, factor)
            self._created_lr_scheduler = True
        scheduler: LRScheduler = self.lr_scheduler
        return scheduler

    # Checkpoints

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.run_folder / FOLDER / STAGING)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """As the Trainer's, but written aside and renamed when every process is done."""
        self._check_weights()
        if self.args.should_save:
            clear_leftovers(self.run_folder)
        self.accelerator.wait_for_everyone()
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                publish(self.run_folder, f"checkpoint-{self.state.global_step}")
                keep_last(self.run_folder, self.recipe.training.keep, also=self._kept_besides())
        except (OSError, SafetensorError, QuietformerError) as error:
            shutil.rmtree(self.run_folder / FOLDER / STAGING, ignore_errors=True)
            raise unwritable(self.run_folder, error) from error
        self.accelerator.wait_for_everyone()

    def _kept_besides(self) -> list[int | None]:
        """Steps whose checkpoints are not to be deleted for being old."""
        return [self._watch.suspect_since]

    def _check_weights(self) -> None:
        """A checkpoint to go back to must be worth going back to."""
        for name, parameter in self._inner().named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise self._lost(f"the weights {name} are not finite")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """A model folder that `inspect` and `load` take; nothing pickled beside it."""
        if self.args.should_save:
            folder = Path(output_dir or self._get_output_dir(None))
            write_folder(self._inner(), folder, processor=self.processing_class, state_dict=state_dict)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not self.is_fsdp_enabled:
            return super().save_model(output_dir, _internal_call)
        state = self.whole_state()
        return self._save(output_dir, state)

    def whole_state(self) -> dict[str, Tensor] | None:
        """Every weight on the first process, if they are shared among several; all processes must ask."""
        if not self.is_fsdp_enabled:
            return None
        state: dict[str, Tensor] = gathered(self.model.state_dict(), keep=self.args.should_save)
        return state

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """The model was opened from the checkpoint, by the names it has on disk, before it was wrapped or sharded."""
        if self.is_deepspeed_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_deepspeed_enabled:
            return super()._save_optimizer_and_scheduler(output_dir)
        state = gathered(self.optimizer.state_dict(), keep=self.args.should_save)
        if self.args.should_save:
            write_tree(Path(output_dir) / OPTIMIZER, state)
            write_tree(Path(output_dir) / SCHEDULER, self.lr_scheduler.state_dict())
        return None

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or self.is_deepspeed_enabled:
            return super()._load_optimizer_and_scheduler(checkpoint)
        folder = Path(checkpoint)
        state, schedule = read_tree(folder / OPTIMIZER), read_tree(folder / SCHEDULER)
        check_optimizer_state(state, self.optimizer, folder / OPTIMIZER)
        check_scheduler_state(schedule, step_of(folder), folder / SCHEDULER)
        with loading(folder):
            self.optimizer.load_state_dict(sharded_optimizer_state(state, self.optimizer))
            self.lr_scheduler.load_state_dict(schedule)
        return None

    def _save_scaler(self, output_dir: str) -> None:
        if (scaler := getattr(self.accelerator, "scaler", None)) is not None and self.args.should_save:
            write_tree(Path(output_dir) / SCALER, scaler.state_dict())

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint and (scaler := getattr(self.accelerator, "scaler", None)) is not None:
            state = read_tree(Path(checkpoint) / SCALER)
            with loading(Path(checkpoint)):
                scaler.load_state_dict(state)

    def _save_rng_state(self, output_dir: str) -> None:
        self.accelerator.wait_for_everyone()  # the first process makes the folder
        write_tree(self._rng_file(output_dir), random_states())

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint and (file := self._rng_file(checkpoint)).is_file():
            states = read_tree(file)
            with loading(Path(checkpoint)):
                set_random_states(states)

    def _rng_file(self, folder: str) -> Path:
        return Path(folder) / f"random-{self.args.process_index}.safetensors"


def unwritable(run: Path, error: BaseException) -> QuietformerError:
    """What to say when the disk is full or gone."""
    last = last_checkpoint(run)
    kept = f"the last whole checkpoint is {last}" if last else "there is no checkpoint yet"
    reason = getattr(error, "strerror", None) or in_one_line(error)
    size = sum(path.stat().st_size for path in last.rglob("*") if path.is_file()) if last else 0
    room = ", ".join([free_in_words(run), *([f"a checkpoint takes {numbers.size(size)}"] if size else [])])
    return QuietformerError(
        f"cannot write into {run} ({room}): {reason}; {kept}; make room and run the same command to resume"
    )
