"""From the options --texts, --dataset, --images, --sequences and --length to what a model takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietformer.data.tokenizers import padding_of, tokenizer_of
from quietformer.errors import QuietformerError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

DEFAULT_LENGTH = 128


def batches_of(
    model: PreTrainedModel, source: str, texts: Path | None, dataset: str, images: Path | None,
    count: int, length: int | None, batch_size: int, seed: int,
) -> tuple[list[Any], Any, dict[str, Any]]:  # fmt: skip
    """Batches, the tokenizer (None for images) and what to say of the data."""
    from quietformer.data.images import digit_images, folder_images, image_batches
    from quietformer.data.text_sequences import text_batches

    if takes_images(model, texts, dataset, images):
        size, channels = image_size(model)
        if images is None:
            pixels, _ = digit_images(count=count, size=size, channels=channels)
        else:
            pixels = folder_images(images, count=count, size=size, channels=channels)
        return list(image_batches(pixels, batch_size=batch_size)), None, {"source": images_name(images)}
    found, tokenizer, data = sequences_of(model, source, texts, dataset, count, length, seed)
    return list(text_batches(found, pad=padding_of(tokenizer), batch_size=batch_size)), tokenizer, data


def takes_images(model: PreTrainedModel, texts: Path | None, dataset: str, images: Path | None) -> bool:
    """Whether the model takes images rather than text; an option for the other kind is refused."""
    if model.main_input_name == "pixel_values":
        if texts is not None or dataset:
            raise QuietformerError(f"{type(model).__name__} takes images; give --images DIR")
        return True
    if images is not None:
        raise QuietformerError(f"{type(model).__name__} takes text; give --texts FILE")
    return False


def sequences_of(
    model: PreTrainedModel, source: str, texts: Path | None, dataset: str, count: int, length: int | None, seed: int
) -> tuple[list[list[int]], Any, dict[str, Any]]:
    """Token sequences that fit the model, their tokenizer and what to say of the data."""
    from quietformer.data.text_sequences import dataset_texts, read_texts, token_sequences

    longest = positions_of(model)
    length = min(DEFAULT_LENGTH, longest or DEFAULT_LENGTH) if length is None else length
    check_length(model, length)
    tokenizer = tokenizer_of(source)
    chosen = read_texts(texts) if texts is not None else dataset_texts(dataset) if dataset else None
    found = token_sequences(chosen, tokenizer, count=count, length=length, seed=seed)
    embeddings: Any = model.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    if max(map(max, found)) >= vocabulary:
        raise QuietformerError(
            f"the tokenizer gives ids past the model's vocabulary of {vocabulary}; they do not belong together"
        )
    described = str(texts) if texts is not None else dataset or "built-in prose (documentation of installed packages)"
    return found, tokenizer, {"source": described, "length": length, "seed": seed}


def positions_of(model: PreTrainedModel) -> int | None:
    """The longest sequence the model has positions for, if that is limited."""
    from torch import nn

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
) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
    """Pixels, labels where class folders or the digits give them, and what to say of the data."""
    from quietformer.data.images import digit_images, labelled_folder_images

    size, channels = image_size(model)
    labels: Tensor | None
    if images is None:
        pixels, labels = digit_images(count=count, size=size, channels=channels)
        labels = labels if _sorts_digits(model) else None
    else:
        label2id = getattr(model.config, "label2id", None)
        pixels, labels = labelled_folder_images(images, count=count, size=size, channels=channels, label2id=label2id)
    return pixels, labels, {"source": images_name(images), "labelled": labels is not None}


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
