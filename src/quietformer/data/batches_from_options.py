"""From the options about data to the batches a model takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.architectures.layout import vocabulary_size
from quietformer.config.options.data import DataOptions
from quietformer.config.options.inspect import InspectOptions
from quietformer.data.audio_batches import audio_batches, folder_windows
from quietformer.data.builtin_text import builtin_paragraphs
from quietformer.data.image_batches import digit_images, folder_images, image_batches, labelled_folder_images
from quietformer.data.processors import feature_extractor_of, image_processor_of
from quietformer.data.text_batches import dataset_texts, read_texts, text_batches, token_sequences
from quietformer.data.text_fit import Watched, check_fit
from quietformer.data.tokenizers import padding_of, tokenizer_of
from quietformer.errors import QuietformerError
from quietformer.models.pooling import pooling_of
from quietformer.results.data import DataInfo

DEFAULT_LENGTH = 128
InputKind = Literal["text", "images", "audio"]
KINDS: dict[str, InputKind] = {"pixel_values": "images", "input_features": "audio", "input_values": "audio"}
"""What a model takes, by the name of its main input; text if it is none of these."""

REMEDIES: dict[InputKind, str] = {
    "text": "--texts FILE",
    "images": "--images DIR",
    "audio": "--audio DIR with .wav files",
}
BUILT_IN_TEXT = "built-in text (documentation of installed packages)"


@dataclass(frozen=True)
class ModelInputs:
    """Batches for a model, the tokenizer that made them (None for images), and which data it is."""

    batches: list[Batch]
    tokenizer: Any
    info: DataInfo


@dataclass(frozen=True)
class TokenSequences:
    """Token sequences that fit a model, their tokenizer, which data it is, and the texts that were not read for them."""

    sequences: list[list[int]]
    tokenizer: Any
    info: DataInfo
    unread: Iterator[str]


def batches_of(model: PreTrainedModel, source: str, options: InspectOptions) -> ModelInputs:
    """As many sequences, images or windows of audio as the options ask for."""
    kind = input_kind(model, options)
    if kind == "images":
        pixels, info = images_of(model, options.images, options.sequences, image_processor_of(source))
        return ModelInputs(list(image_batches(pixels, batch_size=options.batch_size)), None, info)
    if kind == "audio":
        extractor = feature_extractor_of(source)
        windows = folder_windows(audio_folder(model, options), extractor, options.sequences)
        batches = list(audio_batches(windows, extractor, batch_size=options.batch_size))
        return ModelInputs(batches, None, DataInfo(source=str(options.audio)))
    found = sequences_of(model, source, options, options.sequences, options.seed)
    batches = list(text_batches(found.sequences, pad=padding_of(found.tokenizer), batch_size=options.batch_size))
    return ModelInputs(batches, found.tokenizer, found.info)


def input_kind(model: PreTrainedModel, options: DataOptions) -> InputKind:
    """What the model takes; an option for another kind is refused."""
    kind = KINDS.get(model.main_input_name, "text")
    given: dict[InputKind, bool] = {
        "text": options.texts is not None or bool(options.dataset),
        "images": options.images is not None,
        "audio": options.audio is not None,
    }
    if any(given[other] for other in given if other != kind):
        raise QuietformerError(f"{type(model).__name__} takes {kind}; give {REMEDIES[kind]}")
    if options.tokenizer and kind != "text":
        raise QuietformerError(f"{type(model).__name__} takes {kind} and no tokens; leave out --tokenizer")
    return kind


def audio_folder(model: PreTrainedModel, options: DataOptions) -> Path:
    """No audio comes with the library: tones are not speech, and a model calibrated on them would be measured wrongly."""
    if options.audio is None:
        raise QuietformerError(f"{type(model).__name__} takes audio; give {REMEDIES['audio']}")
    return options.audio


def sequences_of(
    model: PreTrainedModel, source: str, options: DataOptions, count: int, seed: int = 0
) -> TokenSequences:
    """Token sequences that fit the model; a seed chooses among passages of the built-in text."""
    length = _default_length(model) if options.length is None else options.length
    check_length(model, length)
    tokenizer = tokenizer_of(options.tokenizer or source)
    if options.texts is not None:
        chosen = Watched(read_texts(options.texts))
    else:
        chosen = Watched(dataset_texts(options.dataset) if options.dataset else builtin_paragraphs())
    built_in = options.texts is None and not options.dataset
    found = token_sequences(chosen, tokenizer, count=count, length=length, seed=seed if built_in else None)
    vocabulary = vocabulary_size(model)
    if max(map(max, found)) >= vocabulary:
        raise QuietformerError(
            f"the tokenizer gives ids past the model's vocabulary of {vocabulary}; they do not belong together, so give the "
            "model's own with --tokenizer"
        )
    name = str(options.texts) if options.texts is not None else options.dataset or BUILT_IN_TEXT
    fit = check_fit(chosen.seen, tokenizer, name)
    info = DataInfo(
        source=name, length=length, seed=seed, unknown_tokens=fit.unknown, tokens_per_word=fit.tokens_per_word
    )
    return TokenSequences(found, tokenizer, info, chosen)


def _default_length(model: PreTrainedModel) -> int:
    """As long as the model has positions, and as its sentence-transformers folder cuts texts."""
    settings = pooling_of(model).settings
    limits = (DEFAULT_LENGTH, positions_of(model), None if settings is None else settings.max_seq_length)
    return min(limit for limit in limits if limit is not None)


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


def images_of(
    model: PreTrainedModel, images: Path | None, count: int, processor: Any = None
) -> tuple[Tensor, DataInfo]:
    """Pixels as the model takes them, prepared by its own image processor if it has one, and which data it is."""
    size, channels = image_size(model)
    if images is None:
        pixels, _ = digit_images(count=count, size=size, channels=channels, processor=processor)
    else:
        pixels = folder_images(images, count=count, size=size, channels=channels, processor=processor)
    return pixels, DataInfo(source=images_name(images))


def labelled_images_of(
    model: PreTrainedModel, images: Path | None, count: int, processor: Any = None
) -> tuple[Tensor, Tensor | None, DataInfo]:
    """The same with labels, where class folders or the digits give them."""
    size, channels = image_size(model)
    labels: Tensor | None
    if images is None:
        pixels, labels = digit_images(count=count, size=size, channels=channels, processor=processor)
        labels = labels if _sorts_digits(model) else None
    else:
        label2id = getattr(model.config, "label2id", None)
        pixels, labels = labelled_folder_images(
            images, count=count, size=size, channels=channels, label2id=label2id, processor=processor
        )
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
