"""`quietformer recipes`: what there is to train, and what a recipe says in full."""

from __future__ import annotations

from pathlib import Path

import typer

from quietformer.cli.progress import working
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json


def recipes(
    name: str = typer.Argument("", metavar="[NAME]", help="Show this recipe in full, every default written out."),
    variant: str = typer.Option("", "--variant", metavar="NAME", help="With one of its variants applied."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write it as JSON."),
) -> None:
    """List the built-in recipes with their variants, or show one."""
    check_place(json_path)
    if variant and not name:
        raise QuietformerError("--variant goes with a recipe; quietformer recipes NAME --variant VARIANT")
    with working("reading"):
        from quietformer.config.recipe_files import as_yaml, built_in_recipes, read_recipe

        chosen = [name] if name else built_in_recipes()
        found = {key: read_recipe(key, variant=variant) for key in chosen}
    write_json(json_path, {key: recipe.to_dict() for key, recipe in found.items()})
    if name:
        print(as_yaml(found[name]), end="")
        return
    for key, recipe in found.items():
        print(f"{key}\n  {recipe.about}")
        if recipe.variants:
            print(f"  variants: {', '.join(recipe.variants)}")
    print("\nquietformer train NAME --out DIR [--variant NAME] [--set KEY=VALUE]")
