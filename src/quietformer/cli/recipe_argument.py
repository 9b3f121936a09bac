"""The argument that names a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="[RECIPE]", help="A recipe file or a built-in name ('quietformer recipes'); small/opt by default."
    ),
]
