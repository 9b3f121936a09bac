"""Tokenizers: the one of a model, or one trained on a corpus that has none; its padding and special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietformer.errors import QuietformerError, in_one_line

if TYPE_CHECKING:
    pass

TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.spm", "*.tiktoken", "bpe.codes")


WORDS = "vocab.txt"
REMEDY = "save one into the folder, or name one with --tokenizer"


def padding_of(tokenizer: Any) -> int:
    """The token that fills a batch up; any will do where the tokenizer has none, since it is masked."""
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0


def tokenizer_of(source: str) -> Any:
    """The tokenizer that came with the model."""
    from transformers import AutoTokenizer

    from quietformer.models.check_folder import check_files
    from quietformer.models.hub_names import check_hub_name
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
    there = [path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)] if here else []
    if here and not there:
        raise QuietformerError(f"{source} has no tokenizer; {REMEDY}")
    if here:
        check_files(folder)
    elif source:
        check_hub_name(source, asked="tokenizer_config.json")
    found, why = None, ""
    try:
        # Code that comes with a tokenizer is refused at once; unasked, transformers would wait for an answer.
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=here, trust_remote_code=False)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # panics of the tokenizers library are no Exception
        why = f" ({in_one_line(error, 120)})"
    only_words = [path.name for path in there] == [WORDS] and not (folder / "tokenizer_config.json").is_file()
    if only_words and (found is None or not _knows(found, folder / WORDS)):
        found = _wordpiece(folder)
    if found is None:
        raise QuietformerError(f"{source} has no tokenizer that loads{why}; {REMEDY}")
    _check_tokenizer(found, source)
    return found


def _knows(tokenizer: Any, words: Path) -> bool:
    """Whether it read the list of words: families that expect other files make a tokenizer of special tokens alone."""
    return bool(tokenizer.vocab_size > len(_listed(words)) // 2)


def _wordpiece(folder: Path) -> Any:
    """A list of words is WordPiece's; one without capitals is of lower-case text."""
    from transformers import BertTokenizer

    listed = _listed(folder / WORDS)
    lower = all(word == word.lower() for word in listed if not word.startswith("["))
    try:
        return BertTokenizer(vocab={word: place for place, word in enumerate(listed)}, do_lower_case=lower)
    except (ValueError, KeyError, TypeError) as error:
        raise QuietformerError(f"{folder / WORDS} makes no tokenizer: {in_one_line(error, 200)}; {REMEDY}") from None


def _listed(words: Path) -> list[str]:
    try:
        return words.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise QuietformerError(f"{words} cannot be read as text: {in_one_line(error, 200)}; {REMEDY}") from None


PROBE = "A word, 2 words; été \u6f22 \U0001f600 the quick brown fox jumps over the lazy dog"
"""Text that any tokenizer must have tokens for, if only unknown ones."""

GROWTH = 64
"""No tokenizer makes more characters or tokens than that of one; a text written out a million times fits into no memory."""


def _check_tokenizer(tokenizer: Any, source: str) -> None:
    """What a damaged file makes of a text is found out once, here, and not in the middle of the work."""
    try:
        rows = [
            row
            for special in (True, False)
            for row in tokenizer([PROBE, "word"], add_special_tokens=special, verbose=False)["input_ids"]
        ]
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        written = len(normalizer.normalize_str(PROBE)) if normalizer is not None else 0
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # panics of the tokenizers library are no Exception
        raise QuietformerError(f"{source} has no tokenizer that works ({in_one_line(error, 120)}); {REMEDY}") from None
    if not all(isinstance(token, int) and token >= 0 for row in rows for token in row):
        raise QuietformerError(f"{source}: its tokenizer gives no token ids; {REMEDY}")
    if (most := max(written, *map(len, rows))) > GROWTH * len(PROBE):
        raise QuietformerError(f"{source}: its tokenizer makes {most:,} of {len(PROBE)} characters; {REMEDY}")
    for name in ("pad_token_id", "mask_token_id"):
        if not isinstance(getattr(tokenizer, name, None), int | None):
            raise QuietformerError(f"{source}: its tokenizer has no usable {name}; {REMEDY}")


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
