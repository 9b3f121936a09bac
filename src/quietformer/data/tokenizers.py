"""Tokenizers: the one of a model, or one trained on a corpus that has none; its padding and special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietformer.errors import QuietformerError, in_one_line

if TYPE_CHECKING:
    pass

TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.spm", "*.tiktoken", "bpe.codes")


def padding_of(tokenizer: Any) -> int:
    """The token that fills a batch up; any will do where the tokenizer has none, since it is masked."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0


def tokenizer_of(source: str) -> Any:
    """The tokenizer that came with the model."""
    from transformers import AutoTokenizer

    from quietformer.models.check_folder import check_files
    from quietformer.models.open_any import alone, gguf_file, resolve

    if (file := gguf_file(source)) is not None:
        try:
            with alone(file) as place:
                return AutoTokenizer.from_pretrained(**place)
        except Exception as error:  # whatever a damaged file makes transformers stumble over
            raise QuietformerError(f"{source} has no tokenizer that loads: {in_one_line(error, 200)}") from None
    folder = Path(resolve(source))
    here = folder.is_dir()
    # Without files transformers makes an empty tokenizer that knows no word, and says nothing.
    if here and not any(path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)):
        raise QuietformerError(f"{source} has no tokenizer; save one into the folder")
    if here:
        check_files(folder)
    try:
        # Code that comes with a tokenizer is refused at once; unasked, transformers would wait for an answer.
        made = AutoTokenizer.from_pretrained(str(folder), local_files_only=here, trust_remote_code=False)
        _check_tokenizer(made)
        return made
    except QuietformerError as error:
        raise QuietformerError(f"{source}: {error}") from None
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # panics of the tokenizers library are no Exception
        missing = "" if here else "is not a folder here, nor a hub id that can be reached, or "
        raise QuietformerError(
            f"{source} {missing}has no tokenizer that loads ({in_one_line(error, 120)}); save one into the folder"
        ) from None


PROBE = "A word, 2 words; été \u6f22 \U0001f600"
"""Text that any tokenizer must have tokens for, if only unknown ones."""


def _check_tokenizer(tokenizer: Any) -> None:
    """What a damaged file makes of a text is found out once, here, and not in the middle of the work."""
    for special in (True, False):
        ids = tokenizer([PROBE, "word"], add_special_tokens=special, verbose=False)["input_ids"]
        if not all(isinstance(token, int) and token >= 0 for row in ids for token in row):
            raise QuietformerError("its tokenizer gives no token ids; save the model's own into the folder")
    for name in ("pad_token_id", "mask_token_id"):
        if not isinstance(getattr(tokenizer, name, None), int | None):
            raise QuietformerError(f"its tokenizer has no usable {name}; save the model's own into the folder")


SPECIAL = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
    "bos_token": "[CLS]", "eos_token": "[SEP]",
}  # fmt: skip
"""One set for masked and causal models: what begins a text and what ends it go by both their names."""


def train_tokenizer(texts: Iterable[str], *, vocabulary: int, characters: int, task: str = "masked") -> Any:
    """A byte-level BPE trained on the first `characters` of the texts; every text it ever meets has tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(dict.fromkeys(SPECIAL.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_first(texts, characters), trainer)
    begin, end = SPECIAL["cls_token"], SPECIAL["sep_token"]
    ids = [(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    tokenizer.post_processor = processors.TemplateProcessing(
        # A prompt to a causal model is not to end before the model has said anything.
        single=f"{begin} $A" if task == "causal" else f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=ids,
    )
    # Which of a pair a token belongs to; models of one text know no such input.
    inputs = ["input_ids", *(["token_type_ids"] if task == "pairs" else []), "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **SPECIAL)  # type: ignore[no-untyped-call]


def _first(texts: Iterable[str], characters: int) -> Iterator[str]:
    size = 0
    for text in texts:
        if text.strip():
            yield text
            size += len(text)
        if size >= characters:
            return
    if not size:
        raise QuietformerError("there is no text to train a tokenizer on")


def special_ids(tokenizer: Any) -> dict[str, int]:
    """The ids a model's config is told of."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {name: value for name in names if (value := getattr(tokenizer, name, None)) is not None}
