"""A training run as a file: strict, frozen, and the whole truth about what will be run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from quietformer.config.attention import AttentionSpec
from quietformer.config.optimization import MUON, OptimizerRecipe, ScheduleRecipe
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe_upgrades import upgraded
from quietformer.config.regularizers import RegularizerSpec, regularizers
from quietformer.config.spec_base import Seed, Spec, listed, nested
from quietformer.config.tasks import TrainedTask
from quietformer.errors import SpecError


class Source(Spec):
    """Where data comes from: a built-in corpus, files on this machine, or a dataset of the hub by its name."""

    title: ClassVar[str] = "source"
    builtin: Literal["embedded", "digits", ""] = ""
    path: str = Field(default="", description="a file, a pattern or a folder: text, CSV, TSV, JSONL, Parquet, images")
    dataset: str = Field(default="", description="a dataset of the hub; the only thing here that uses the network")
    config: str = Field(default="", description="the dataset's configuration")
    split: str = "train"
    text: str = Field(default="text", description="the column that holds the text, or the first of a pair")
    second: str = Field(default="", description="the column of the second text of a pair")
    image: str = Field(default="image", description="the column that holds the image")
    label: str = Field(default="label", description="the column that holds the class")

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if sum(map(bool, (self.builtin, self.path, self.dataset))) != 1:
            raise ValueError("give one of builtin, path and dataset")
        return self

    @property
    def name(self) -> str:
        return self.builtin or self.path or "/".join(filter(None, (self.dataset, self.config)))

    @property
    def in_words(self) -> str:
        """As people call it."""
        return {"embedded": "the built-in text", "digits": "scikit-learn's digits"}.get(self.builtin, self.name)

    @classmethod
    def read(cls, value: Any) -> Source:
        """From its mapping, or from text: `embedded`, `digits`, or a path."""
        if isinstance(value, str):
            named: dict[str, Any] = {"builtin" if value in ("embedded", "digits") else "path": value}
            return cls(**named)
        source = nested(cls, value)
        if source is None:
            raise SpecError("a source is a path, 'embedded', 'digits' or a mapping, got nothing")
        return source


def _sources(value: Any) -> Any:
    if value is None:
        return ()
    return tuple(Source.read(item) for item in (value if isinstance(value, (list, tuple)) else [value]))


Sources = Annotated[tuple[Source, ...], BeforeValidator(_sources)]


class ModelRecipe(Spec):
    """The model: a configuration to start from nothing, or a pretrained one."""

    title: ClassVar[str] = "model"
    pretrained: str = Field(default="", description="a folder, a built-in name or a hub id")
    config: dict[str, Any] = Field(
        default_factory=dict, description="fields of the transformers config, with model_type"
    )
    dropout: float | None = Field(default=None, ge=0, lt=1, description="every dropout of the model")
    init_std: float | None = Field(default=None, gt=0, description="standard deviation of the initial weights")
    rotate: bool = Field(
        default=False,
        description="for task distill: rotate the residual stream first, so that no feature stands out (Llama-like models)",
    )
    damp: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="for task distill: scale the massive units of gated FFNs by this factor first",
    )
    balance: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="for task distill: alpha of channel balancing, applied to a post-norm model first; 0: not balanced",
    )

    @model_validator(mode="after")
    def _somewhere_to_start(self) -> ModelRecipe:
        if not self.pretrained and "model_type" not in self.config:
            raise ValueError("config needs a model_type (bert, opt, vit, ...), or give pretrained")
        if self.pretrained and self.init_std is not None:
            raise ValueError("init_std is for a model that starts from nothing, and pretrained is given")
        return self


class TokenizerRecipe(Spec):
    """A pretrained tokenizer, or one trained on the training text."""

    title: ClassVar[str] = "tokenizer"
    pretrained: str = Field(default="", description="a folder or a hub id; the pretrained model's own by default")
    vocabulary: int = Field(default=2048, ge=300, le=1_000_000, description="tokens of a BPE trained on the spot")
    characters: int = Field(default=3_000_000, ge=1000, description="so much text it is trained on")


class DataRecipe(Spec):
    """What is trained on and what is held out."""

    title: ClassVar[str] = "data"
    train: Sources = (Source(builtin="embedded"),)
    validation: Sources = Field(default=(), description="by default a part of train is held out")
    hold_out: int = Field(default=256, ge=1, description="sequences or images held out where no validation is given")
    validation_limit: int = Field(default=0, ge=0, description="use at most so many for validation; 0: all")
    limit: int = Field(default=0, ge=0, description="use at most so many texts, pairs or images; 0: all")
    length: int = Field(default=128, ge=4, le=1_000_000, description="tokens of a sequence")
    special_tokens: Literal["sequence", "text"] = Field(
        default="sequence", description="around every sequence, or around every text before they are joined"
    )
    unit: Literal["sequences", "passages", "images"] = Field(
        default="sequences",
        description="for task distill: running text cut into sequences, passages of one to six sentences, or images",
    )
    masked: float = Field(default=0.15, gt=0, lt=1, description="share of tokens a masked model is asked for")
    streaming: bool = Field(default=False, description="read as it goes, for data larger than the disk")
    shuffle_buffer: int = Field(default=10_000, ge=1, le=10_000_000, description="texts to choose from when streaming")
    processes: int = Field(default=1, ge=1, le=1024, description="processes that tokenise")

    @model_validator(mode="after")
    def _something_to_train_on(self) -> DataRecipe:
        if not self.train:
            raise ValueError("train names no source")
        return self


class AugmentRecipe(Spec):
    """What is done to training images; everything off by default."""

    title: ClassVar[str] = "augment"
    crop: Annotated[tuple[float, float] | None, BeforeValidator(listed)] = Field(
        default=None, description="random crops of this share of the area, scaled back"
    )
    interpolation: Literal["bilinear", "bicubic", "random"] = "bilinear"
    flip: float = Field(default=0.0, ge=0, le=1, description="probability of a horizontal flip")
    color_jitter: float = Field(default=0.0, ge=0, description="strength in brightness, contrast and saturation")
    randaugment: Annotated[tuple[int, int] | None, BeforeValidator(listed)] = Field(
        default=None, description="operations an image, and their magnitude of 30"
    )
    mixup: float = Field(default=0.0, ge=0, description="alpha of the Beta distribution")
    cutmix: float = Field(default=0.0, ge=0, description="alpha of the Beta distribution")
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _in_range(self) -> AugmentRecipe:
        if self.crop is not None and not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise ValueError(f"crop must be two shares of the area, 0 < low <= high <= 1, got {list(self.crop)}")
        if self.randaugment is not None and not (self.randaugment[0] >= 1 and 0 <= self.randaugment[1] <= 30):
            raise ValueError(
                f"randaugment must be one operation or more at a magnitude of 0 to 30, got {list(self.randaugment)}"
            )
        return self


class TrainingRecipe(Spec):
    """How long, how much at once, how precisely, and how often it speaks."""

    title: ClassVar[str] = "training"
    steps: int = Field(default=0, ge=0, description="optimizer steps")
    epochs: float = Field(default=0.0, ge=0, le=1_000_000, description="instead of steps")
    batch_size: int = Field(default=16, ge=1, le=1_000_000, description="sequences or images a step, over all devices")
    micro_batch: int = Field(default=0, ge=0, description="at most so many at once on a device; 0: all of its share")
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    gradient_checkpointing: bool = False
    compile: bool = False
    log_every: int = Field(default=50, ge=1)
    evaluate_every: int = Field(default=500, ge=0, description="0: at the end alone")
    save_every: int = Field(default=500, ge=0, description="0: at the end alone")
    keep: int = Field(default=2, ge=1, le=1000, description="checkpoints kept")
    outliers_every: int = Field(default=100, ge=0, description="0: outliers are not watched")
    explosion: float = Field(default=3.0, gt=0, description="stop when the smoothed loss is so far above its best")
    patience: int = Field(
        default=0, ge=0, description="for task distill: stop after so many evaluations without a better one; 0: never"
    )

    @model_validator(mode="after")
    def _one_length(self) -> TrainingRecipe:
        if bool(self.steps) == bool(self.epochs):
            raise ValueError("give steps or epochs" + (", not both" if self.steps else ""))
        return self


class TeacherRecipe(Spec):
    """How a student is compared with its teacher (self-distillation); each field is a weight in the loss."""

    title: ClassVar[str] = "teacher"
    hidden: float = Field(default=1.0, ge=0, description="mean squared difference of hidden states over their variance")
    last_hidden: float = Field(default=0.0, ge=0, description="the same of the last hidden state alone")
    pooled: float = Field(default=1.0, ge=0, description="1 - cosine of the mean last hidden state")
    logits: float = Field(default=1.0, ge=0, description="divergence (Kullback-Leibler) of what a head predicts")
    objective: float = Field(default=0.0, ge=0, description="a causal model's own loss beside the teacher's")


class QatRecipe(Spec):
    """Quantization-aware training (QAT): the last steps run with simulated quantization; gradients pass straight through."""

    title: ClassVar[str] = "qat"
    share: float = Field(default=0.0, ge=0, le=1, description="share of the run, at its end, that is trained with QAT")
    recalibrate_every: int = Field(default=25, ge=1, description="steps between two calibrations of the ranges")
    calibration: int = Field(default=64, ge=1, description="training examples used for calibration")
    spec: Annotated[QuantSpec, BeforeValidator(lambda value: nested(QuantSpec, value))] = Field(
        default_factory=lambda: QuantSpec(per_channel=True), description="the quantization, also that of evaluations"
    )


class Variant(Spec):
    """What one variant of an experiment changes in its recipe, and what the paper found for it."""

    title: ClassVar[str] = "variant"
    set: dict[str, Any] = Field(default_factory=dict, description="dotted fields and their values, as --set takes them")
    paper: dict[str, Any] = Field(default_factory=dict, description="the paper's results")


def _regularizers(value: Any) -> Any:
    if isinstance(value, (str, Mapping)) or not hasattr(value, "__iter__"):
        raise SpecError(f"regularizers must be a list, got {value!r}")
    return tuple(regularizers.read(item) for item in value)


def _variants(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise SpecError(f"variants must be a mapping of names, got {value!r}")
    return {str(name): nested(Variant, {} if item is None else item) for name, item in value.items()}


class Recipe(Spec):
    """One training run, or one experiment with variants."""

    title: ClassVar[str] = "recipe"
    name: str = Field(default="run", min_length=1)
    about: str = ""
    task: TrainedTask
    seed: Seed = 0
    model: Annotated[ModelRecipe, BeforeValidator(lambda value: nested(ModelRecipe, value))]
    attention: Annotated[AttentionSpec, BeforeValidator(lambda value: nested(AttentionSpec, value))] = Field(
        default_factory=AttentionSpec
    )
    patch_norm: bool = Field(default=False, description="LayerNorm after the patch embedding")
    tokenizer: Annotated[TokenizerRecipe, BeforeValidator(lambda value: nested(TokenizerRecipe, value))] = Field(
        default_factory=TokenizerRecipe
    )
    data: Annotated[DataRecipe, BeforeValidator(lambda value: nested(DataRecipe, value))] = Field(
        default_factory=DataRecipe
    )
    augment: Annotated[AugmentRecipe, BeforeValidator(lambda value: nested(AugmentRecipe, value))] = Field(
        default_factory=AugmentRecipe
    )
    optimizer: Annotated[OptimizerRecipe, BeforeValidator(lambda value: nested(OptimizerRecipe, value))] = Field(
        default_factory=OptimizerRecipe
    )
    schedule: Annotated[ScheduleRecipe, BeforeValidator(lambda value: nested(ScheduleRecipe, value))] = Field(
        default_factory=ScheduleRecipe
    )
    training: Annotated[TrainingRecipe, BeforeValidator(lambda value: nested(TrainingRecipe, value))]
    regularizers: Annotated[tuple[RegularizerSpec, ...], BeforeValidator(_regularizers)] = Field(
        default=(), description="terms added to the loss"
    )
    teacher: Annotated[TeacherRecipe, BeforeValidator(lambda value: nested(TeacherRecipe, value))] = Field(
        default_factory=TeacherRecipe
    )
    qat: Annotated[QatRecipe, BeforeValidator(lambda value: nested(QatRecipe, value))] = Field(
        default_factory=QatRecipe
    )
    trainer: dict[str, Any] = Field(
        default_factory=dict, description="further TrainingArguments: report_to, fsdp, dataloader_num_workers, ..."
    )
    variants: Annotated[dict[str, Variant], BeforeValidator(_variants)] = Field(
        default_factory=dict, description="changes by name, for --variant"
    )
    paper: dict[str, Any] = Field(default_factory=dict, description="the paper's results for this run")

    @model_validator(mode="before")
    @classmethod
    def _as_of_today(cls, fields: Any) -> Any:
        return upgraded(fields) if isinstance(fields, Mapping) else fields

    @model_validator(mode="after")
    def _fits_its_task(self) -> Recipe:
        if self.task == "pairs":
            for source in (*self.data.train, *self.data.validation):
                if not source.second:
                    raise ValueError(
                        f"task 'pairs' needs the column of the second text: give 'second' for {source.name}"
                    )
        if self.task != "images" and (self.patch_norm or self.augment != AugmentRecipe()):
            raise ValueError(f"patch_norm and augment are for task 'images', not {self.task!r}")
        if self.task in ("images", "distill") and self.data.streaming:
            raise ValueError(f"task {self.task!r} is not streamed; give data that fits the disk")
        self._fits_optimizer()
        if self.task == "distill":
            self._fits_distillation()
        elif (
            self.teacher, self.qat, self.training.patience, self.data.unit,
            self.model.rotate, self.model.damp, self.model.balance,
        ) != (TeacherRecipe(), QatRecipe(), 0, "sequences", False, 1.0, 0.0):  # fmt: skip
            raise ValueError(
                "teacher, qat, training.patience, data.unit, model.rotate, model.damp and model.balance are for task "
                f"'distill', not {self.task!r}"
            )
        return self

    def _fits_optimizer(self) -> None:
        optimizer, sharded = self.optimizer, bool(self.trainer.get("fsdp") or self.trainer.get("deepspeed"))
        if optimizer.single_scale_norms and self.model.pretrained:
            raise ValueError(
                "optimizer.single_scale_norms is for a model that starts from nothing, and model.pretrained is given"
            )
        for field, given in (
            ("name: muon", optimizer.name == MUON),
            ("single_scale_norms", optimizer.single_scale_norms),
        ):
            if given and sharded:
                raise ValueError(f"optimizer.{field} does not run on a sharded model; leave out fsdp and deepspeed")

    def _fits_distillation(self) -> None:
        if not self.model.pretrained:
            raise ValueError("task 'distill' needs a model to start from: give model.pretrained")
        if self.model.config or self.model.dropout is not None:
            raise ValueError("task 'distill' takes the model's own config, and no dropout; leave out both fields")
        if self.model.rotate and (self.teacher.hidden or self.teacher.last_hidden):
            raise ValueError("a rotated model has its hidden states in another basis; set teacher.hidden to 0")
        if self.trainer.get("fsdp"):
            raise ValueError("task 'distill' does not run on a sharded model; leave out trainer.fsdp")


def is_path(name: str) -> bool:
    """Whether a recipe is named as a file rather than as one of the built-in ones."""
    return Path(name).suffix in (".yaml", ".yml")
