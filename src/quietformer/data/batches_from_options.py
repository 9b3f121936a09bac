"""From the options about data to the batches a model takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.config.options.data import DataOptions
from quietformer.config.options.inspect import InspectOptions
from quietformer.data.image_batches import digit_images, folder_images, image_batches, labelled_folder_images
from quietformer.data.text_batches import dataset_texts, read_texts, text_batches, token_sequences
from quietformer.data.tokenizers import padding_of, tokenizer_of
from quietformer.errors import QuietformerError
from quietformer.results.data import DataInfo

DEFAULT_LENGTH = 128
BUILT_IN_TEXT = "built-in text (documentation of installed packages)"


@dataclass(frozen=True)
class ModelInputs:
    """Batches for a model, the tokenizer that made them (None for images), and which data it is."""

    batches: list[Batch]
    tokenizer: Any
    info: DataInfo


def batches_of(model: PreTrainedModel, source: str, options: InspectOptions) -> ModelInputs:
    """As many sequences or images as the options ask for."""
    if takes_images(model, options):
        size, channels = image_size(model)
        count = options.sequences
        if options.images is None:
            pixels, _ = digit_images(count=count, size=size, channels=channels)
        else:
            pixels = folder_images(options.images, count=count, size=size, channels=channels)
        batches = list(image_batches(pixels, batch_size=options.batch_size))
        return ModelInputs(batches, None, DataInfo(source=images_name(options.images)))
    found, tokenizer, info = sequences_of(model, source, options, options.sequences, options.seed)
    batches = list(text_batches(found, pad=padding_of(tokenizer), batch_size=options.batch_size))
    return ModelInputs(batches, tokenizer, info)


def takes_images(model: PreTrainedModel, options: DataOptions) -> bool:
    """Whether the model takes images rather than text; an option for the other kind is refused."""
    if model.main_input_name == "pixel_values":
        if options.texts is not None or options.dataset:
            raise QuietformerError(f"{type(model).__name__} takes images; give --images DIR")
        return True
    if options.images is not None:
        raise QuietformerError(f"{type(model).__name__} takes text; give --texts FILE")
    return False


def sequences_of(
    model: PreTrainedModel, source: str, options: DataOptions, count: int, seed: int = 0
) -> tuple[list[list[int]], Any, DataInfo]:
    """Token sequences that fit the model, their tokenizer, and which data it is."""
    longest = positions_of(model)
    length = min(DEFAULT_LENGTH, longest or DEFAULT_LENGTH) if options.length is None else options.length
    check_length(model, length)
    tokenizer = tokenizer_of(source)
    chosen: Iterable[str] | None = None
    if options.texts is not None:
        chosen = read_texts(options.texts)
    elif options.dataset:
        chosen = dataset_texts(options.dataset)
    found = token_sequences(chosen, tokenizer, count=count, length=length, seed=seed)
    embeddings: Any = model.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    if max(map(max, found)) >= vocabulary:
        raise QuietformerError(
            f"the tokenizer gives ids past the model's vocabulary of {vocabulary}; they do not belong together"
        )
    name = str(options.texts) if options.texts is not None else options.dataset or BUILT_IN_TEXT
    return found, tokenizer, DataInfo(source=name, length=length, seed=seed)


def positions_of(model: PreTrainedModel) -> int | None:
    """The longest sequence the model has positions for, if that is limited."""
    # RoBERTa and its kin count positions from after the padding token.
    limits = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
    longest: Any = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and not hasattr(model.config, "relative_attention_num_buckets"):
        limits.append(longest)
    return min(limits, default=None)


def check_length(model: PreTrainedModel, length: int) -> None:
    longest = positions_of(model)
    if longest is not None and length > longest:
        raise QuietformerError(f"--length {length} is longer than the {longest} positions of {type(model).__name__}")


def labelled_images_of(
    model: PreTrainedModel, images: Path | None, count: int
) -> tuple[Tensor, Tensor | None, DataInfo]:
    """Pixels, labels where class folders or the digits give them, and which data it is."""
    size, channels = image_size(model)
    labels: Tensor | None
    if images is None:
        pixels, labels = digit_images(count=count, size=size, channels=channels)
        labels = labels if _sorts_digits(model) else None
    else:
        label2id = getattr(model.config, "label2id", None)
        pixels, labels = labelled_folder_images(images, count=count, size=size, channels=channels, label2id=label2id)
    return pixels, labels, DataInfo(source=images_name(images), labelled=labels is not None)


def _sorts_digits(model: PreTrainedModel) -> bool:
    """Whether the classes can be the ten digits: ten, and not named otherwise."""
    names = {label: str(name) for label, name in (getattr(model.config, "id2label", None) or {}).items()}
    return set(names) == set(range(10)) and all(names[digit] in (f"LABEL_{digit}", str(digit)) for digit in names)


def images_name(images: Path | None) -> str:
    return "scikit-learn's digits" if images is None else str(images)


def image_size(model: PreTrainedModel | PreTrainedConfig) -> tuple[int, int]:
    """Side and channels of the images a model takes, or one of this config would."""
    whole = getattr(model, "config", model)
    config: Any = getattr(whole, "vision_config", whole)
    size = getattr(config, "image_size", 224)
    return (size if isinstance(size, int) else size[0]), getattr(config, "num_channels", 3)
