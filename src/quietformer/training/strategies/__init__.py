"""Ways of training, one a file: supervised by labels, or distilled from a teacher."""

from __future__ import annotations

from quietformer.config.recipe import Recipe
from quietformer.training.strategies.base import Prepared, Strategy
from quietformer.training.strategies.distillation import Distillation
from quietformer.training.strategies.supervised import Supervised


def strategy_for(recipe: Recipe, prepared: Prepared) -> Strategy:
    """The way in which a recipe's task is trained."""
    return Distillation(recipe, prepared) if recipe.task == "distill" else Supervised(recipe, prepared)
