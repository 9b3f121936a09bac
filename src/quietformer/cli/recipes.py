"""`quietformer recipes`: what there is to train, and what a recipe says in full."""

from __future__ import annotations

import typer

from quietformer.cli.progress import working
from quietformer.cli.report_files import JsonOutput
from quietformer.config.options.study import RecipesOptions


def recipes(
    options: RecipesOptions,
    output: JsonOutput,
    name: str = typer.Argument("", metavar="[NAME]", help="Show this recipe in full, every default written out."),
) -> None:
    """List the built-in recipes with their variants, or show one."""
    output.check()
    with working("reading"):
        from quietformer.config.recipe_files import as_yaml
        from quietformer.workflows import listings

        report = listings.recipes(name, options)
    output.write(report)
    if name:
        print(as_yaml(report.recipes[0].recipe), end="")
        return
    print("\n".join(report.sentences()))
    print("\nquietformer train NAME --out DIR [--variant NAME] [--set KEY=VALUE]")
