"""The section of config.json that says what Quietformer changed in a model.

It travels as transformers' `quantization_config`, the one place where a package may hook into `from_pretrained`,
beside an `attn_implementation` that plain transformers does not know and therefore refuses (docs/adr/0003).
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from transformers.configuration_utils import PreTrainedConfig
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from quietformer.errors import CheckpointError, UnsupportedModelError
from quietformer.model_spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METHOD = "quietformer"


@register_quantization_config(METHOD)
class QuietformerSection(QuantizationConfigMixin):
    """The JSON form of a ModelSpec, as transformers carries it; read strictly only when a model is built from it."""

    def __init__(self, **section: Any) -> None:
        self.quant_method = METHOD  # type: ignore[assignment]  # registered by name, not in transformers' enumeration
        self.weights = section.pop(
            "weights", None
        )  # the file of the folder that holds them; None: transformers' usual one
        self.section = section

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec.from_section(self.section)

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


@register_quantizer(METHOD)
class QuietformerLoader(HfQuantizer):
    """Our part in `from_pretrained`: nothing is quantized, modules are put in before the weights arrive."""

    quantization_config: QuietformerSection

    @property
    def is_trainable(self) -> bool:
        return True

    def is_serializable(self) -> bool:
        return True

    def update_attn_implementation(self, config: PreTrainedConfig) -> PreTrainedConfig:
        """Called once the section is read and before weights are looked for: point at our file."""
        if getattr(config, "_attn_implementation", None) == METHOD:
            config._attn_implementation = None  # the default, to go back to if our attention is removed
        if self.quantization_config.weights is not None:
            config.transformers_weights = self.quantization_config.weights
        return config

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        from quietformer.checkpoint import put_in_  # here, since it needs the models that are importing us

        put_in_(model, self.quantization_config.spec, kwargs.get("checkpoint_files"))
        self.expected = {name: (t.shape, t.is_floating_point()) for name, t in model.state_dict().items()}

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        self._check_loaded(model)
        # From here on it is an ordinary model: trainers and casts refuse what calls itself quantized.
        for name in ("hf_quantizer", "is_quantized", "quantization_method"):
            model.__dict__.pop(name, None)
        for module in model.modules():
            if isinstance(config := getattr(module, "config", None), PreTrainedConfig):
                vars(config).pop("_is_quantized", None)
        vars(model.config).pop("transformers_weights", None)
        self.quantization_config.weights = (
            None  # true of the folder, not of the model: `save_pretrained` writes its own name
        )

    def _check_loaded(self, model: PreTrainedModel) -> None:
        """transformers takes tensors of any shape for what calls itself quantized, and leaves ours unset if missing."""
        for name, tensor in model.state_dict(keep_vars=True).items():
            shape, floating = self.expected.get(name, (tensor.shape, tensor.is_floating_point()))
            if tensor.shape != shape or tensor.is_floating_point() != floating:
                raise CheckpointError(
                    f"{name} has shape {tuple(tensor.shape)} and type {tensor.dtype} in the weights, "
                    f"the model needs shape {tuple(shape)} and {'real' if floating else 'whole'} numbers"
                )
            if any(mark in f".{name}" for mark in (".quiet.", ".quant.", ".quiet_gain")) and not getattr(
                tensor, "_is_hf_initialized", False
            ):
                raise CheckpointError(f"{name} is missing from the weights")


def model_spec(model: PreTrainedModel) -> ModelSpec:
    """What was changed in this model; an empty spec if nothing was."""
    carried = getattr(model.config, "quantization_config", None)
    return carried.spec if isinstance(carried, QuietformerSection) else ModelSpec()


def check_unquantized(model: PreTrainedModel) -> None:
    """There is one place for such a section; a model quantized by another method has it taken."""
    carried = getattr(model.config, "quantization_config", None)
    ours = isinstance(carried, dict) and carried.get("quant_method") == METHOD
    if carried is not None and not ours and not isinstance(carried, QuietformerSection):
        raise UnsupportedModelError(
            f"{type(model).__name__} is already quantized by another method; load it unquantized, then apply"
        )


def write_section_(model: PreTrainedModel, spec: ModelSpec) -> None:
    """Make every later `save_pretrained`, a Trainer's included, carry the spec, or carry nothing if it is empty."""
    config = model.config
    if spec == ModelSpec():
        for name in ("quantization_config", "attn_implementation"):
            if name in vars(config):
                delattr(config, name)
        return
    config.quantization_config = QuietformerSection(**spec.to_section())
    # Not the live setting (that is `_attn_implementation`) but a serialised key that only our import makes valid.
    config.attn_implementation = METHOD
