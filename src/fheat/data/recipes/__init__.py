"""Recipes that turn the datasets of the paper, as downloaded, into the nnU-Net raw layout, one dataset per file."""

from collections.abc import Mapping
from typing import Final

from fheat.data.recipes import abdomenct1k, brats2019, hnc, la, msd_task01, pancreas
from fheat.data.recipes.base import Recipe, RecipeOptions

RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        la.RECIPE,
        pancreas.RECIPE_A,
        pancreas.RECIPE_B,
        brats2019.RECIPE,
        msd_task01.RECIPE,
        abdomenct1k.RECIPE,
        hnc.RECIPE,
    )
}

__all__ = ["RECIPES", "Recipe", "RecipeOptions"]
