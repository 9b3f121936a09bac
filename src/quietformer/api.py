"""The verbs of the command line as Python functions, with the same names, options and defaults.

Each verb takes what its options object has as keywords: `qf.inspect("minilm", sequences=16)` is
`quietformer inspect minilm --sequences 16`. It returns a report.
"""

from __future__ import annotations

import inspect as signatures
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from quietformer.config.options.base import Options
from quietformer.config.options.convert import ConvertOptions
from quietformer.config.options.export import ExportOptions
from quietformer.config.options.inspect import InspectOptions
from quietformer.config.options.quantize import QuantizationPlanOptions, QuantizeOptions
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.options.study import CompareOptions, PaperOptions, RecipesOptions, SweepOptions
from quietformer.config.options.train import PlanOptions, TrainOptions
from quietformer.progress import Progress, shown_progress
from quietformer.study import compare as compare_study
from quietformer.study import paper as paper_study
from quietformer.study import sweep as sweep_study
from quietformer.workflows import convert as convert_workflow
from quietformer.workflows import export as export_workflow
from quietformer.workflows import inspect as inspect_workflow
from quietformer.workflows import listings
from quietformer.workflows import quantize as quantize_workflow
from quietformer.workflows import retrofit as retrofit_workflow
from quietformer.workflows import train as train_workflow

P = ParamSpec("P")
What = TypeVar("What")
Given = TypeVar("Given", bound=Options)
Result = TypeVar("Result")
Reported = TypeVar("Reported", covariant=True)
Folder = str | os.PathLike[str]


def _verb(
    work: Callable[[What, Given, Progress], Result], options: Callable[P, Given]
) -> Callable[Concatenate[What, P], Result]:
    """A workflow as a function of what it works on, and its options as keywords."""

    @wraps(work)
    def verb(what: What, /, *args: P.args, **given: P.kwargs) -> Result:
        return work(what, options(*args, **given), shown_progress())

    _sign_(verb, work, options)
    return verb


def _verb_to_folder(
    work: Callable[[What, Folder, Given, Progress], Result], options: Callable[P, Given]
) -> Callable[Concatenate[What, Folder, P], Result]:
    """The same for a workflow that writes a folder."""

    @wraps(work)
    def verb(what: What, out: Folder, /, *args: P.args, **given: P.kwargs) -> Result:
        return work(what, out, options(*args, **given), shown_progress())

    _sign_(verb, work, options)
    return verb


class NamedVerb(Protocol[P, Reported]):
    """A verb whose first argument may be left out."""

    def __call__(self, what: str = "", /, *args: P.args, **options: P.kwargs) -> Reported: ...


def _verb_of_name(work: Callable[[str, Given, Progress], Result], options: Callable[P, Given]) -> NamedVerb[P, Result]:
    """The same for a workflow that does something sensible without a name."""

    @wraps(work)
    def verb(what: str = "", /, *args: P.args, **given: P.kwargs) -> Result:
        return work(what, options(*args, **given), shown_progress())

    _sign_(verb, work, options)
    return verb


def _sign_(verb: Any, work: Callable[..., Any], options: Any) -> None:
    """What `help()` shows: the workflow's own arguments, then every option with its default."""
    own = [
        parameter.replace(kind=signatures.Parameter.POSITIONAL_ONLY)
        for name, parameter in signatures.signature(work).parameters.items()
        if name not in ("options", "progress")
    ]
    fields = [
        signatures.Parameter(
            name,
            signatures.Parameter.KEYWORD_ONLY,
            default=field.get_default(call_default_factory=True),
            annotation=field.annotation,
        )
        for name, field in options.model_fields.items()
    ]
    verb.__signature__ = signatures.Signature([*own, *fields])
    verb.options = options


inspect = _verb(inspect_workflow.inspect, InspectOptions)
quantize = _verb(quantize_workflow.quantize, QuantizeOptions)
plan_quantization = _verb(quantize_workflow.plan, QuantizationPlanOptions)
export = _verb_to_folder(export_workflow.export, ExportOptions)
convert = _verb_to_folder(convert_workflow.convert, ConvertOptions)
retrofit = _verb_to_folder(retrofit_workflow.retrofit, RetrofitOptions)
train = _verb_of_name(train_workflow.train, TrainOptions)
plan_training = _verb_of_name(train_workflow.plan_training, PlanOptions)
compare = _verb_of_name(compare_study.compare, CompareOptions)
sweep = _verb(sweep_study.sweep, SweepOptions)
paper = _verb_of_name(paper_study.paper, PaperOptions)
recipes = _verb_of_name(listings.recipes, RecipesOptions)
studies, variants = listings.studies, listings.variants
