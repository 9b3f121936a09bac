"""The verbs of the command line as Python functions, with the same names, options and defaults.

Each verb takes what its options object has as keywords: `qf.inspect("minilm", sequences=16)` is
`quietformer inspect minilm --sequences 16`. It returns a report.
"""

from __future__ import annotations

import inspect as signatures
import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from quietformer.config.options.base import Options, Place
from quietformer.config.options.bench import BenchOptions
from quietformer.config.options.convert import ConvertOptions
from quietformer.config.options.export import ExportOptions
from quietformer.config.options.inspect import InspectOptions
from quietformer.config.options.layer_by_layer import LayerByLayerOptions
from quietformer.config.options.quantize import QuantizationPlanOptions, QuantizeOptions
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.options.study import CompareOptions, PaperOptions, RecipesOptions, SweepOptions
from quietformer.config.options.train import PlanOptions, TrainOptions
from quietformer.errors import QuietformerError
from quietformer.progress import Progress, shown_progress
from quietformer.study import compare as compare_study
from quietformer.study import paper as paper_study
from quietformer.study import sweep as sweep_study
from quietformer.workflows import bench as bench_workflow
from quietformer.workflows import convert as convert_workflow
from quietformer.workflows import export as export_workflow
from quietformer.workflows import inspect as inspect_workflow
from quietformer.workflows import layer_by_layer, listings
from quietformer.workflows import quantize as quantize_workflow
from quietformer.workflows import retrofit as retrofit_workflow
from quietformer.workflows import train as train_workflow
from quietformer.workflows.open_once import ModelName

P = ParamSpec("P")
Given = TypeVar("Given", bound=Options)
Result = TypeVar("Result")
Reported = TypeVar("Reported", covariant=True)
Models = ModelName | Sequence[ModelName]


def _function(work: Callable[..., Any], options: type[Options]) -> Any:
    """A workflow as a function of its own arguments, positional or by name, and of its options as keywords."""
    arguments = [
        parameter
        for name, parameter in signatures.signature(work).parameters.items()
        if name not in ("options", "progress")
    ]
    own = signatures.Signature(arguments)

    @wraps(work)
    def verb(*given: Any, **named: Any) -> Any:
        apart = {name: named.pop(name) for name in own.parameters if name in named}
        try:
            bound = own.bind(*given[: len(arguments)], **apart)
        except TypeError as error:
            raise TypeError(f"{work.__name__}() {error}") from None
        bound.apply_defaults()
        values = [value if name in MODELS else _text(name, value) for name, value in bound.arguments.items()]
        return work(*values, options(*given[len(arguments) :], **named), shown_progress())

    fields = [
        signatures.Parameter(
            name,
            signatures.Parameter.KEYWORD_ONLY,
            default=field.get_default(call_default_factory=True),
            annotation=field.annotation,
        )
        for name, field in options.model_fields.items()
    ]
    signed: Any = verb
    signed.__signature__ = signatures.Signature([*arguments, *fields])  # what `help()` shows
    signed.options = options
    return signed


MODELS = ("model", "models")
"""Arguments that need not be text: opening a model says what they may be."""


def _text(name: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike):
        raise QuietformerError(f"{name} must be text or a path, got {value!r}")
    return os.fspath(value)


# ---- kinds of verbs by their arguments, so that a type checker knows these by name, and every option
class OfModels(Protocol[P, Reported]):
    """A verb that takes a model or several."""

    def __call__(self, models: Models, *args: P.args, **options: P.kwargs) -> Reported: ...


def _of_models(work: Callable[[Models, Given, Progress], Result], options: Callable[P, Given]) -> OfModels[P, Result]:
    return cast(OfModels[P, Result], _function(work, cast(type[Options], options)))


class OfModel(Protocol[P, Reported]):
    """A verb that takes a model."""

    def __call__(self, model: ModelName, *args: P.args, **options: P.kwargs) -> Reported: ...


def _of_model(work: Callable[[ModelName, Given, Progress], Result], options: Callable[P, Given]) -> OfModel[P, Result]:
    return cast(OfModel[P, Result], _function(work, cast(type[Options], options)))


class ToFolder(Protocol[P, Reported]):
    """A verb that takes a model and writes a folder."""

    def __call__(self, model: ModelName, out: Place, *args: P.args, **options: P.kwargs) -> Reported: ...


def _to_folder(
    work: Callable[[ModelName, Place, Given, Progress], Result], options: Callable[P, Given]
) -> ToFolder[P, Result]:
    return cast(ToFolder[P, Result], _function(work, cast(type[Options], options)))


class OfFolder(Protocol[P, Reported]):
    """A verb about an exported folder."""

    def __call__(self, folder: Place, *args: P.args, **options: P.kwargs) -> Reported: ...


def _of_folder(work: Callable[[Place, Given, Progress], Result], options: Callable[P, Given]) -> OfFolder[P, Result]:
    return cast(OfFolder[P, Result], _function(work, cast(type[Options], options)))


class FromFiles(Protocol[P, Reported]):
    """The same for a verb that goes back to the model's files: an open model will not do."""

    def __call__(self, model: Place, out: Place, *args: P.args, **options: P.kwargs) -> Reported: ...


def _from_files(
    work: Callable[[Place, Place, Given, Progress], Result], options: Callable[P, Given]
) -> FromFiles[P, Result]:
    return cast(FromFiles[P, Result], _function(work, cast(type[Options], options)))


class OfRecipe(Protocol[P, Reported]):
    """A verb that takes a recipe, by default small/opt."""

    def __call__(self, recipe: Place = "", *args: P.args, **options: P.kwargs) -> Reported: ...


def _of_recipe(work: Callable[[str, Given, Progress], Result], options: Callable[P, Given]) -> OfRecipe[P, Result]:
    return cast(OfRecipe[P, Result], _function(work, cast(type[Options], options)))


class OfStudy(Protocol[P, Reported]):
    """A verb that takes the file of a study, or a built-in name."""

    def __call__(self, file: Place, *args: P.args, **options: P.kwargs) -> Reported: ...


def _of_study(work: Callable[[str, Given, Progress], Result], options: Callable[P, Given]) -> OfStudy[P, Result]:
    return cast(OfStudy[P, Result], _function(work, cast(type[Options], options)))


class OfItem(Protocol[P, Reported]):
    """A verb about all tables and figures of the paper, or one."""

    def __call__(self, item: str = "", *args: P.args, **options: P.kwargs) -> Reported: ...


def _of_item(work: Callable[[str, Given, Progress], Result], options: Callable[P, Given]) -> OfItem[P, Result]:
    return cast(OfItem[P, Result], _function(work, cast(type[Options], options)))


class OfName(Protocol[P, Reported]):
    """A verb that lists everything, or shows one by its name."""

    def __call__(self, name: Place = "", *args: P.args, **options: P.kwargs) -> Reported: ...


def _of_name(work: Callable[[str, Given, Progress], Result], options: Callable[P, Given]) -> OfName[P, Result]:
    return cast(OfName[P, Result], _function(work, cast(type[Options], options)))


inspect = _of_models(inspect_workflow.inspect, InspectOptions)
quantize = _of_model(quantize_workflow.quantize, QuantizeOptions)
plan_quantization = _of_model(quantize_workflow.plan, QuantizationPlanOptions)
export = _to_folder(export_workflow.export, ExportOptions)
export_layer_by_layer = _to_folder(layer_by_layer.export_layer_by_layer, LayerByLayerOptions)
plan_layer_by_layer = _to_folder(layer_by_layer.plan_layer_by_layer, LayerByLayerOptions)
bench = _of_folder(bench_workflow.bench, BenchOptions)
convert = _to_folder(convert_workflow.convert, ConvertOptions)
retrofit = _from_files(retrofit_workflow.retrofit, RetrofitOptions)
train = _of_recipe(train_workflow.train, TrainOptions)
plan_training = _of_recipe(train_workflow.plan_training, PlanOptions)
compare = _of_recipe(compare_study.compare, CompareOptions)
sweep = _of_study(sweep_study.sweep, SweepOptions)
paper = _of_item(paper_study.paper, PaperOptions)
recipes = _of_name(listings.recipes, RecipesOptions)
studies, variants = listings.studies, listings.variants
