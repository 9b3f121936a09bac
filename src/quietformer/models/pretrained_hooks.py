"""Our part in transformers' `from_pretrained`: modules are put in before the weights arrive."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import core_model_loading, modeling_utils
from transformers.configuration_utils import PreTrainedConfig
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.base import HfQuantizer

from quietformer.config.recorded_changes import METHOD, RecordedChanges
from quietformer.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def _is_ours(name: str) -> bool:
    return any(mark in f".{name}" for mark in (".quiet.", ".quant.", ".quiet_gain"))


@register_quantizer(METHOD)
class ChangesLoader(HfQuantizer):
    """Our part in `from_pretrained`: nothing is quantized, modules are put in before the weights arrive."""

    quantization_config: RecordedChanges

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
        from quietformer.models.apply_changes import (
            apply_changes_,  # here, since it needs the models that are importing us
        )

        apply_changes_(model, self.quantization_config.spec, kwargs.get("checkpoint_files"))
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
            if _is_ours(name) and not getattr(tensor, "_is_hf_initialized", False):
                raise CheckpointError(f"{name} is missing from the weights")


def _mismatch_as_usual(put: Callable[..., None]) -> Callable[..., None]:
    """For a tensor of the model's own, our folders are not quantized: another shape is told or drawn anew, as asked for."""

    @functools.wraps(put)
    def set_param_for_module(model: Any, target_name: str, *args: Any, **kwargs: Any) -> None:
        if not _is_ours(target_name):
            args = tuple(None if isinstance(one, ChangesLoader) else one for one in args)
            kwargs = {name: None if isinstance(one, ChangesLoader) else one for name, one in kwargs.items()}
        put(model, target_name, *args, **kwargs)

    return set_param_for_module


def _checked(save: Callable[..., None]) -> Callable[..., None]:
    """What a folder cannot say is refused however it is saved: it would load as vanilla attention in silence."""

    @functools.wraps(save)
    def save_pretrained(self: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        from quietformer.models.save import check_recorded  # here, since it needs the models that are importing us

        check_recorded(self)
        save(self, *args, **kwargs)

    return save_pretrained


core_model_loading.set_param_for_module = _mismatch_as_usual(core_model_loading.set_param_for_module)
modeling_utils.PreTrainedModel.save_pretrained = _checked(modeling_utils.PreTrainedModel.save_pretrained)  # type: ignore[method-assign]
