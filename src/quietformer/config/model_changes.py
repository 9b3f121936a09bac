"""What a saved model's section says: everything that was changed in it, versioned, older formats read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from quietformer.config.attention import AttentionSpec, PatchNormSpec
from quietformer.config.quantization import QuantizedSpec
from quietformer.config.spec_base import JsonObject, Spec, nested
from quietformer.errors import SpecError

FORMAT_VERSION = 7
"""Version of the section that a saved model carries; `upgrade_section` reads the older ones."""


def _names(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise SpecError(f"gained_norms must be a list of names, got {value!r}")
    return tuple(value)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _tokens(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not all(_whole(token, 0) for token in value):
        raise SpecError(f"prefix: tokens must be a list of token ids, got {value!r}")
    return tuple(value)


def _shapes(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str)
        and isinstance(sizes, (list, tuple))
        and len(sizes) == 3
        and all(_whole(size, 1) for size in sizes)
        for name, sizes in value.items()
    ):
        raise SpecError(f"prefix: layers must map names to [heads, key width, value width], got {value!r}")
    return {name: tuple(sizes) for name, sizes in value.items()}


def _features(value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(count, int) and not isinstance(count, bool) and count > 0
        for name, count in value.items()
    ):
        raise SpecError(f"gained_activations must map names to numbers of features, got {value!r}")
    return dict(value)


class PrefixSpec(Spec):
    """Tokens in front of every sequence, kept as constant keys and values of attention layers."""

    title: ClassVar[str] = "prefix"
    tokens: Annotated[tuple[int, ...], BeforeValidator(_tokens)] = Field(min_length=1)
    layers: Annotated[dict[str, tuple[int, int, int]], BeforeValidator(_shapes)] = Field(
        min_length=1, description="for each attention layer its key/value heads and the widths of their keys and values"
    )


class ModelChanges(Spec):
    """Everything Quietformer changed in a model: the section saved with it."""

    attention: Annotated[AttentionSpec | None, BeforeValidator(lambda value: nested(AttentionSpec, value))] = None
    patch_norm: Annotated[PatchNormSpec | None, BeforeValidator(lambda value: nested(PatchNormSpec, value))] = None
    gained_norms: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        default=(), description="LayerNorms that multiply what they take in by a gain for each feature"
    )
    gained_activations: Annotated[dict[str, int], BeforeValidator(_features)] = Field(
        default={},
        description="activation functions that multiply what they give by a gain for each of so many features",
    )
    quantized: Annotated[QuantizedSpec | None, BeforeValidator(lambda value: nested(QuantizedSpec, value))] = None

    prefix: Annotated[PrefixSpec | None, BeforeValidator(lambda value: nested(PrefixSpec, value))] = None

    def to_section(self) -> JsonObject:
        fields = self.to_dict()
        # What an earlier format can say is written in it, for earlier releases to read.
        version = FORMAT_VERSION
        if self.quantized is not None and self.quantized.spec.needs_format_7:
            return {"version": version, **fields}
        version -= 1
        if self.prefix is not None or (self.quantized is not None and self.quantized.spec.needs_format_6):
            return {"version": version, **fields}
        del fields["prefix"]
        version -= 1
        if self.quantized is not None and self.quantized.spec.needs_format_5:
            return {"version": version, **fields}
        version -= 1
        for newest in ("gained_activations", "gained_norms"):
            if fields[newest]:
                break
            del fields[newest]
            version -= 1
        return {"version": version, **fields}

    @classmethod
    def from_section(cls, section: Any) -> ModelChanges:
        return cls(**upgrade_section(section))


def upgrade_section(section: Any) -> dict[str, Any]:
    """A saved section in today's form; what is newer than this version is refused, never guessed at."""
    if not isinstance(section, Mapping):
        raise SpecError(f"the quietformer section must be a mapping, got {type(section).__name__}")
    fields = dict(section)
    version = fields.pop("version", None)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SpecError(f"the quietformer section has no usable version: {version!r}")
    if version > FORMAT_VERSION:
        raise SpecError(
            f"written in format {version}, this version reads up to {FORMAT_VERSION}; pip install -U quietformer"
        )
    # Format 1 knew nothing of quantization, format 2 of norms with gains, format 3 of activation functions with them, format 4 of
    # placements other than the paper's and of scales per token, format 5 of prefixes, format 6 of a range for each call of a
    # shared module; all read as they are.
    return fields
