"""The section of config.json that says what Quietformer changed in a model.

It travels as transformers' `quantization_config`, the one place where a package may hook into `from_pretrained`,
beside an `attn_implementation` that plain transformers does not know and therefore refuses (docs/adr/0003).
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from transformers.quantizers.auto import register_quantization_config
from transformers.utils.quantization_config import QuantizationConfigMixin

from quietformer.config.model_changes import ModelChanges
from quietformer.errors import UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METHOD = "quietformer"


@register_quantization_config(METHOD)
class RecordedChanges(QuantizationConfigMixin):
    """The JSON form of a ModelChanges, as transformers carries it; read strictly only when a model is built from it."""

    def __init__(self, **section: Any) -> None:
        self.quant_method = METHOD  # type: ignore[assignment]  # registered by name, not in transformers' enumeration
        self.weights = section.pop(
            "weights", None
        )  # the file of the folder that holds them; None: transformers' usual one
        self.section = section

    @property
    def spec(self) -> ModelChanges:
        return ModelChanges.from_section(self.section)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        section = {name: value for name, value in config_dict.items() if name != "quant_method"}
        return (cls(**section), kwargs) if return_unused_kwargs else cls(**section)

    def to_dict(self) -> dict[str, Any]:
        weights = {} if self.weights is None else {"weights": self.weights}
        return {"quant_method": METHOD, **weights, **copy.deepcopy(self.section)}

    def to_diff_dict(self) -> dict[str, Any]:
        return self.to_dict()

    def to_json_string(self, use_diff: bool = True) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def get(self, name: str, default: Any = None) -> Any:
        """transformers reads a quantization config both as an object and as a mapping."""
        return self.to_dict().get(name, default)


def changes_of(model: PreTrainedModel) -> ModelChanges:
    """What was changed in this model; an empty spec if nothing was."""
    carried = getattr(model.config, "quantization_config", None)
    return carried.spec if isinstance(carried, RecordedChanges) else ModelChanges()


def refuse_foreign_quantization(model: PreTrainedModel) -> None:
    """There is one place for such a section; a model quantized by another method has it taken."""
    carried = getattr(model.config, "quantization_config", None)
    ours = isinstance(carried, dict) and carried.get("quant_method") == METHOD
    if carried is not None and not ours and not isinstance(carried, RecordedChanges):
        raise UnsupportedModelError(
            f"{type(model).__name__} is already quantized by another method; load it unquantized, then apply"
        )


def record_changes_(model: PreTrainedModel, spec: ModelChanges) -> None:
    """Make every later `save_pretrained`, a Trainer's included, carry the spec, or carry nothing if it is empty."""
    config = model.config
    if spec == ModelChanges():
        for name in ("quantization_config", "attn_implementation"):
            if name in vars(config):
                delattr(config, name)
        return
    config.quantization_config = RecordedChanges(**spec.to_section())
    # Not the live setting (that is `_attn_implementation`) but a serialised key that only our import makes valid.
    config.attn_implementation = METHOD
