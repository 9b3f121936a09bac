"""Build a toy-size random model of every transformers architecture that goes through the attention interface.

`architectures()` lists them, `tiny(name)` builds one together with inputs for a forward pass, and running the module
(`python -m tests.families.tiny [name ...]`) tries all of them and prints a summary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import signal
import sys
import time
import typing
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from . import inputs as input_recipes
from .instrument import AttentionCall, largest_change, randomise, run, visible_uninitialised_memory, watch_attention
from .overrides import OVERRIDES, Override
from .shrink import tiny_config

MODELS_FOLDER = Path(transformers.__file__).parent / "models"
# How much the output must move when attention is switched off for a model to count as a useful test subject.
NOTICEABLE = 1e-4


class CannotBuild(Exception):
    """No class of the folder could be built and run; the message says why in one line."""


@dataclass
class TinyModel:
    name: str
    model: PreTrainedModel
    inputs: dict[str, Any]
    kind: str
    text_key: str | None
    mask_key: str | None
    # Extras: whether later tokens leave earlier outputs unchanged, and what the attention interface was called with.
    causal: bool = False
    calls: list[AttentionCall] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------- discovery


@functools.cache
def modeling_modules(folder: str) -> tuple[Any, ...]:
    names = sorted(
        info.name for info in pkgutil.iter_modules([str(MODELS_FOLDER / folder)]) if info.name.startswith("modeling")
    )
    loaded = []
    for name in names:
        # A modeling file may need an optional package that is not installed; the folder's other files still count.
        with contextlib.suppress(ImportError):
            loaded.append(importlib.import_module(f"transformers.models.{folder}.{name}"))
    return tuple(loaded)


def model_classes(folder: str) -> list[type[PreTrainedModel]]:
    return [
        value
        for module in modeling_modules(folder)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, PreTrainedModel) and value.__module__ == module.__name__
    ]


def _refers_to_interface(folder: str) -> bool:
    return any(
        "ALL_ATTENTION_FUNCTIONS" in path.read_text(encoding="utf-8")
        for path in (MODELS_FOLDER / folder).glob("modeling*.py")
    )


@functools.cache
def _architectures() -> tuple[str, ...]:
    found = []
    for path in sorted(MODELS_FOLDER.iterdir()):
        if not path.is_dir() or not any(path.glob("modeling*.py")):
            continue
        if _refers_to_interface(path.name) or any(cls._supports_attention_backend for cls in model_classes(path.name)):
            found.append(path.name)
    return tuple(found)


def architectures() -> list[str]:
    """Folders with a class that claims attention-backend support, or whose code looks the interface up."""
    return list(_architectures())


def config_class_of(model_class: type[PreTrainedModel]) -> type[PreTrainedConfig] | None:
    """The class attribute where it is set, else the annotation of the constructor's `config` argument."""
    candidates: list[Any] = [model_class.config_class]
    for owner in model_class.__mro__:
        candidates.append(inspect.get_annotations(owner).get("config"))
        if "__init__" in owner.__dict__:
            candidates.append(inspect.signature(owner.__dict__["__init__"]).parameters.get("config"))
    for candidate in candidates:
        annotation = getattr(candidate, "annotation", candidate)
        if isinstance(annotation, str):
            annotation = getattr(sys.modules[model_class.__module__], annotation.strip("'\""), None)
        for option in typing.get_args(annotation) or (annotation,):
            if inspect.isclass(option) and issubclass(option, PreTrainedConfig) and option is not PreTrainedConfig:
                return option
    return None


_SUFFIX_ORDER = (
    "ForConditionalGeneration",
    "MTModel",
    "ForMaskedLM",
    "ForCausalLM",
    "LMHeadModel",
    "ForImageClassification",
    "ForCTC",
    "ForObjectDetection",
    "ForPreTraining",
    "Model",
    "ForPrediction",
    "ForSequenceClassification",
    "Encoder",
    "Decoder",
    "Backbone",
)


def _candidates(folder: str) -> list[type[PreTrainedModel]]:
    """Concrete classes of the folder, the most representative first."""
    # Of a pair of text and image encoders, the model with both says more than the image classifier.
    paired = any(cls.__name__.endswith("TextModel") for cls in model_classes(folder))

    def rank(cls: type[PreTrainedModel]) -> tuple[int, int]:
        name = cls.__name__
        position = next((i for i, suffix in enumerate(_SUFFIX_ORDER) if name.endswith(suffix)), len(_SUFFIX_ORDER))
        if paired and name.endswith("ForImageClassification"):
            position = len(_SUFFIX_ORDER)
        return position, len(name)

    usable = [
        cls
        for cls in model_classes(folder)
        if "PreTrained" not in cls.__name__
        and not cls.__name__.endswith("ForGeneration")
        and "forward" in dir(cls)
        and cls.forward is not nn.Module.forward
    ]
    return sorted(usable, key=rank)


# ----------------------------------------------------------------------------------------------------- building


def _override_for(folder: str, cls: type[PreTrainedModel]) -> Override:
    """The folder's override, cut down to what concerns `cls` if that is only a part of the folder's main model."""
    override = OVERRIDES.get(folder, Override())
    main_class = next((other for other in _candidates(folder) if other.__name__ == override.cls), None)
    main_config, config_class = config_class_of(main_class or _candidates(folder)[0]), config_class_of(cls)
    if config_class is main_config or main_config is None or not override.config:
        return override
    try:
        default = main_config()
    except Exception:
        return override
    part = next((name for name, value in default.__dict__.items() if type(value) is config_class), None)
    if part is None:
        return dataclasses.replace(override, config={})
    prefix = f"{part}."
    changes = {path.removeprefix(prefix): value for path, value in override.config.items() if path.startswith(prefix)}
    return dataclasses.replace(override, config=changes)


def _build(cls: type[PreTrainedModel], override: Override, seed: int, grouped: bool = True) -> PreTrainedModel:
    config_class = config_class_of(cls)
    if config_class is None:
        raise CannotBuild(f"{cls.__name__} has no configuration class")
    config = tiny_config(config_class, override.config, grouped=grouped)
    with torch.random.fork_rng(), visible_uninitialised_memory():
        torch.manual_seed(seed)
        model: PreTrainedModel = cls._from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation="eager", dtype=torch.float32
        )
    randomise(model, seed)
    if override.prepare is not None:
        override.prepare(model)
    module: nn.Module = model
    module.to(torch.float32).eval()
    return model


def _check(model: PreTrainedModel, inputs: dict[str, Any]) -> list[AttentionCall]:
    calls: list[AttentionCall] = []
    with watch_attention(calls):
        first = run(model, inputs)
    if not calls:
        raise CannotBuild("forward does not reach the attention interface")
    if not first or not all(bool(torch.isfinite(tensor).all()) for tensor in first):
        raise CannotBuild("output is not finite" if first else "forward returns no floating-point tensor")
    if largest_change(first, run(model, inputs)) != 0.0:
        raise CannotBuild("forward is not deterministic")
    with watch_attention(silence=True):
        change = largest_change(first, run(model, inputs))
    if not change > NOTICEABLE:
        raise CannotBuild(f"attention hardly changes the output ({change:.1e})")
    return calls


def sequence_outputs(tensors: list[torch.Tensor], length: int) -> list[torch.Tensor]:
    """The outputs that have one vector per token."""
    return [t for t in tensors if t.dim() == 3 and t.shape[0] == input_recipes.BATCH and t.shape[1] == length]


def _text_behaviour(model: PreTrainedModel, inputs: dict[str, Any], text_key: str) -> tuple[bool, bool]:
    """Whether the output depends on the last token at all, and whether only outputs at its own position do."""
    ids = inputs[text_key]
    changed = ids.clone()
    low, high = int(ids.min()), int(ids.max())  # stay among ids the model is known to accept
    changed[:, -1] = low + (changed[:, -1] - low + 1) % (high - low + 1)
    before, after = run(model, inputs), run(model, {**inputs, text_key: changed})
    reacts = largest_change(before, after) > NOTICEABLE
    pairs = list(zip(sequence_outputs(before, ids.shape[1]), sequence_outputs(after, ids.shape[1]), strict=True))
    last_moves = any(float((a[:, -1] - b[:, -1]).abs().max()) > NOTICEABLE for a, b in pairs)
    earlier_still = all(float((a[:, :-1] - b[:, :-1]).abs().max()) < 1e-5 for a, b in pairs)
    return reacts, last_moves and earlier_still


def _kind(model: PreTrainedModel, inputs: dict[str, Any], causal: bool) -> str:
    config = model.config
    parts = [
        name
        for name in ("vision_config", "audio_config", "image_config", "video_config")
        if getattr(config, name, None) is not None
    ]
    has_text = "input_ids" in inputs
    if has_text and (parts or any(name.startswith("pixel") or name.startswith("input_feat") for name in inputs)):
        return "multimodal"
    if any(name in inputs for name in ("input_features", "input_values")):
        return "audio"
    if "decoder_input_ids" in inputs:
        return "encoder-decoder"
    if has_text:
        return "causal" if causal else "encoder"
    is_vision = any(name.startswith("pixel") or name == "grid_thw" for name in (*inputs, model.main_input_name))
    return "vision" if is_vision else "other"


def _finish(folder: str, model: PreTrainedModel, inputs: dict[str, Any], calls: list[AttentionCall]) -> TinyModel:
    parameters = inspect.signature(model.forward).parameters
    text_key = next(
        (
            name
            for name in ("input_ids", "decoder_input_ids")
            if isinstance(inputs.get(name), torch.Tensor) and inputs[name].dim() == 2
        ),
        None,
    )
    mask_key = "attention_mask" if text_key == "input_ids" and "attention_mask" in parameters else None
    if text_key == "decoder_input_ids" and "decoder_attention_mask" in parameters:
        mask_key = "decoder_attention_mask"
    reacts, causal = _text_behaviour(model, inputs, text_key) if text_key else (False, False)
    if not reacts:
        text_key = mask_key = None
    return TinyModel(folder, model, inputs, _kind(model, inputs, causal), text_key, mask_key, causal, calls)


def _attempt(folder: str, cls: type[PreTrainedModel], override: Override, seed: int, grouped: bool) -> TinyModel:
    model = _build(cls, override, seed, grouped)
    if override.inputs is not None:
        made = [override.inputs(model, torch.Generator().manual_seed(seed + 1))]
    else:
        made = [
            candidate
            for names in input_recipes.plans(model)
            for candidate in input_recipes.synthesise(model, names, seed)
        ]
    problem: Exception = CannotBuild("no inputs could be made")
    for position, candidate in enumerate(made):
        try:
            return _finish(folder, model, candidate, _check(model, candidate))
        except Exception as error:  # the next plan may have what this one lacked
            if position == 0 or isinstance(error, CannotBuild):
                problem = error
    raise problem


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text if isinstance(error, CannotBuild) else f"{type(error).__name__}: {text}")[:240]


def _owns_a_call(built: TinyModel) -> bool:
    return any(call.module.split(".")[0] == built.name for call in built.calls)


def _try_class(folder: str, cls: type[PreTrainedModel], override: Override, seed: int) -> TinyModel:
    try:
        return _attempt(folder, cls, override, seed, grouped=True)
    except Exception:
        return _attempt(folder, cls, override, seed, grouped=False)


def tiny(folder: str, *, seed: int = 0, class_name: str | None = None) -> TinyModel:
    """A tiny random model of the architecture, or of its class `class_name`, that really runs the interface."""
    override = OVERRIDES.get(folder, Override())
    if override.reason:
        raise CannotBuild(override.reason)
    candidates = _candidates(folder)
    wanted = class_name or override.cls
    if wanted:
        candidates = [cls for cls in candidates if cls.__name__ == wanted]
    if not candidates:
        raise CannotBuild("the folder's modeling code cannot be imported or has no such model class")
    reasons: list[str] = []
    fallback: TinyModel | None = None
    needs_own_call = _refers_to_interface(folder) and not wanted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cls in candidates:
            try:
                built = _try_class(folder, cls, _override_for(folder, cls), seed)
            except Exception as error:
                reasons.append(f"{cls.__name__}: {_one_line(error)}")
                continue
            # A folder with attention code of its own is represented by a class that runs that code.
            if not needs_own_call or _owns_a_call(built):
                return built
            fallback = fallback or built
    if fallback is not None:
        return fallback
    problem = CannotBuild(reasons[0])
    for reason in reasons[1:]:
        problem.add_note(reason)
    raise problem


def variants(folder: str, *, seed: int = 0) -> Iterator[TinyModel]:
    """The model of `tiny`, then further classes of the folder that run attention modules not met before."""
    main_model = tiny(folder, seed=seed)
    yield main_model
    seen = {call.module for call in main_model.calls}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cls in _candidates(folder):
            if cls is type(main_model.model):
                continue
            # The special inputs belong to the main class; parts get the generic ones.
            override = dataclasses.replace(_override_for(folder, cls), inputs=None, prepare=None)
            try:
                built = _try_class(folder, cls, override, seed)
            except Exception:
                continue
            if not {call.module for call in built.calls} <= seen:
                seen |= {call.module for call in built.calls}
                yield built


# ------------------------------------------------------------------------------------------------- command line


class _OutOfTime(BaseException):
    """Derived from BaseException so that the fallbacks above do not swallow it."""


def _raise_out_of_time(signum: int, frame: Any) -> None:
    raise _OutOfTime


def main(arguments: list[str]) -> int:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    limit = 60
    verbose = "-v" in arguments
    names = [name for name in arguments if not name.startswith("-")] or architectures()
    failures: dict[str, str] = {}
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, _raise_out_of_time)
    for position, name in enumerate(names, 1):
        begin = time.perf_counter()
        signal.alarm(limit)
        try:
            built = tiny(name)
            note = (
                f"{built.kind:15} {type(built.model).__name__:45} {len(built.calls):3} calls "
                f"{'causal' if built.causal else '':6} {','.join(built.inputs)}"
            )
            if verbose:
                note += "".join(f"\n      {call}" for call in built.calls)
        except _OutOfTime:
            failures[name] = f"took longer than {limit} s"
            note = f"FAILED {failures[name]}"
        except Exception as error:
            failures[name] = _one_line(error)
            note = f"FAILED {failures[name]}"
            if verbose:
                note += "".join(f"\n      {line}" for line in getattr(error, "__notes__", ()))
        finally:
            signal.alarm(0)
        print(f"[{position:3}/{len(names)}] {name:28} {time.perf_counter() - begin:5.1f} s  {note}", flush=True)
    print(f"\nbuilt {len(names) - len(failures)} of {len(names)} in {time.perf_counter() - start:.0f} s")
    for name, reason in failures.items():
        print(f"  {name}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
