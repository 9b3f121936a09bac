"""Command line options from options objects: a field is an option, so that nothing about it is said twice."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from quietformer.cli.given_values import check_given
from quietformer.config.options.base import Flag, Options, flag_of

TYPED = ("COMMANDLINE", "ENVIRONMENT")
"""Where click finds what a user has said; everything else is a default."""


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """The command for a function: each parameter that is an options object becomes its fields as options.

    Only what was typed is passed on, so that an options object knows what the user has said.
    """
    hints = get_type_hints(function, include_extras=True)
    objects = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Options)}
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in objects
    ]
    fields = {name: field for cls in objects.values() for name, field in cls.model_fields.items()}

    def command(context: typer.Context, **values: Any) -> None:
        typed = {name for name in values if getattr(context.get_parameter_source(name), "name", "") in TYPED}
        check_given(values, typed)
        built = {
            key: cls(**{name: values[name] for name in cls.model_fields if name in typed})
            for key, cls in objects.items()
        }
        function(**{parameter.name: values[parameter.name] for parameter in own}, **built)

    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    ordered = [context, *own, *(_parameter(name, field) for name, field in fields.items())]
    signature = inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in ordered], return_annotation=None
    )
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    kind, default = _shown_type(field.annotation), field.get_default(call_default_factory=True)
    flag = flag_of(name, field)
    if kind in (bool, bool | None) and default is not False:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    metavar = next((item.metavar for item in field.metadata if isinstance(item, Flag) and item.metavar), None)
    choices = _choices(field.annotation)
    option = typer.Option(
        flag,
        metavar=metavar or ("|".join(choices) if choices else None),
        help=field.description,
        show_default=default not in ("", (), None, False),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=list(default) if isinstance(default, tuple) else default,
        annotation=Annotated[kind, option],
    )


def _shown_type(annotation: Any) -> Any:
    """What typer reads the text as; limits and choices are the options object's to check."""
    if get_origin(annotation) is tuple:
        return list[str]
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [_shown_type(part) for part in get_args(annotation) if part is not type(None)]
        return inner[0] | None
    return annotation if annotation in (bool, int, float, str, Path) else str


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return []
