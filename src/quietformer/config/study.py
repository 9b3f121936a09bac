"""What a study is made of: a recipe, fields to vary, random seeds, and what is measured of every run."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from quietformer.config.quantization import Granularity, QuantSpec, estimators, parse_bits
from quietformer.config.recipe import Recipe, is_path
from quietformer.config.recipe_files import BUILT_IN, find_file, parse_yaml, read_recipe, with_fields
from quietformer.config.spec_base import Seed, Spec, listed, nearest, nested
from quietformer.errors import SpecError

VARIANT, BITS = "variant", "bits"
"""Two axes of a grid that are no fields of a recipe: its variants by name, and the bit widths of quantization."""

RESERVED = ("seed", "variants")

EXPORTED = "w8a8"
"""The bit width that ONNX Runtime computes; others are only simulated."""

PER_TOKEN = "-token"  # noqa: S105
"""After bit widths: scales for each token instead of one for each tensor."""

FEWEST, MOST = 2, 16
"""Bits that a tensor can be quantized to."""

STUDIES = BUILT_IN.parent / "studies"

MOST_RUNS = 2000
"""Of a study; each is a training run."""

NAME_LENGTH = 80


def _bits(value: Any) -> Any:
    """One or several, in lower case, each once."""
    several = [value] if isinstance(value, str) else value
    return tuple(dict.fromkeys(str(one).lower() for one in several)) if isinstance(several, (list, tuple)) else several


def _grid(value: Any) -> Any:
    """Lists of values by field; bits in lower case, as `measures` has them."""
    if not isinstance(value, Mapping) or not value:
        raise SpecError(
            f"grid must hold fields with lists of values, e.g. {{variant: [vanilla, gated]}}, got {value!r}"
        )
    for field, values in value.items():
        if not isinstance(values, (list, tuple)):
            raise SpecError(f"grid: {field} must have a list of values, e.g. [{values}], got {values!r}")
    return {field: list(_bits(values)) if field == BITS else list(values) for field, values in value.items()}


def _seeds(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise SpecError(f"seeds must be a list, e.g. [0, 1], got {value!r}")
    return listed(value)


class Measures(Spec):
    """What is measured of a trained model."""

    title: ClassVar[str] = "measures"
    bits: Annotated[tuple[str, ...], BeforeValidator(_bits)] = Field(
        default=("w8a8",),
        min_length=1,
        description="bit widths to quantize to, e.g. [w8a8, w4a8, w8a8-token]; -token: a scale per token",
    )
    calibrations: int = Field(
        default=3, ge=1, le=1000, description="how often each model is calibrated, on other examples each time"
    )
    sequences: int = Field(default=256, ge=2, le=1_000_000, description="validation sequences or images to evaluate on")
    real: bool = Field(default=False, description="also export real INT8 and evaluate it in ONNX Runtime")
    pages: bool = Field(default=False, description="also write the page of `inspect` for every run")

    @model_validator(mode="after")
    def _bits_can_be_read(self) -> Measures:
        for text in self.bits:
            read_bits(text)
        return self


def read_bits(text: str) -> tuple[int, int]:
    """Bits of weights and activations from `w8a8` or `w8a8-token`; needs no torch."""
    weights, activations = parse_bits(text.removesuffix(PER_TOKEN))
    if not all(FEWEST <= bits <= MOST for bits in (weights, activations)):
        raise SpecError(f"weights and activations have {FEWEST} to {MOST} bits, got {text!r}")
    return weights, activations


def quantization(bits: str) -> QuantSpec:
    """As in the paper: min-max ranges at 8 bits; below that, weight ranges by mean squared error."""
    weights, activations = read_bits(bits)
    estimator = estimators.read("minmax" if weights >= 8 else "mse")
    granularity: Granularity = "token" if bits.endswith(PER_TOKEN) else "tensor"
    return QuantSpec(weight_bits=weights, activation_bits=activations, weights=estimator, granularity=granularity)


def bits_title(bits: str) -> str:
    """`W8A8` or `W8A8 per token`."""
    title = bits.removesuffix(PER_TOKEN).upper()
    return f"{title} per token" if bits.endswith(PER_TOKEN) else title


class Study(Spec):
    """A grid over fields of a recipe; every point is run once for each random seed."""

    title: ClassVar[str] = "study"
    name: str = Field(default="study", min_length=1)
    about: str = ""
    recipe: str = Field(min_length=1, description="a recipe file or a built-in name")
    set: dict[str, Any] = Field(default_factory=dict, description="fields of the recipe to change for every run")
    grid: Annotated[dict[str, list[Any]], BeforeValidator(_grid)] = Field(
        min_length=1, description="lists of values by field; also `variant` and `bits`"
    )
    variants: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="variants of the study's own: fields and values by name"
    )
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_seeds)] = Field(default=(0,), min_length=1)
    measures: Annotated[Measures, BeforeValidator(lambda value: nested(Measures, value))] = Field(
        default_factory=Measures
    )
    threads: int = Field(
        default=1, ge=1, le=1024, description="threads of a run; the results depend on it in the last digits"
    )
    paper: str = Field(default="", description="what the paper says about this question, printed below the table")

    @model_validator(mode="after")
    def _values_to_vary(self) -> Study:
        for field, values in self.grid.items():
            if not values:
                raise ValueError(f"grid: {field} has no values")
            if any(value in values[:place] for place, value in enumerate(values)):
                raise ValueError(f"grid: {field} has a value twice")
        for field in RESERVED:
            if any(field in fields for fields in (self.grid, self.set, *self.variants.values())):
                raise ValueError(
                    f"{field} is no field to set; seeds are given under 'seeds', variants under 'variants'"
                )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a seed twice")
        for text in self.grid.get(BITS, ()):
            read_bits(str(text))
        return self

    @property
    def measured(self) -> Measures:
        """With the bits of the grid, which need no training of their own."""
        return self.measures.model_copy(update={"bits": _bits(self.grid.get(BITS, self.measures.bits))})

    @property
    def trained(self) -> dict[str, list[Any]]:
        """The axes whose values need a training run each."""
        return {field: values for field, values in self.grid.items() if field != BITS}

    def trials(self) -> list[Trial]:
        """Every point with every seed; a mistake in any of them is an error before the first run starts."""
        if (runs := math.prod(map(len, self.trained.values())) * len(self.seeds)) > MOST_RUNS:
            raise SpecError(f"the grid and its seeds make {runs} runs; a study has at most {MOST_RUNS}, so split it up")
        for variant in self.variants:
            if variant not in self.grid.get(VARIANT, ()):
                self._recipe({VARIANT: variant}, self.seeds[0])  # saved with the others, so it must be valid
        points = [
            (dict(zip(self.trained, values, strict=True)), seed)
            for values in itertools.product(*self.trained.values())
            for seed in self.seeds
        ]
        names = Counter(trial_name(at, seed) for at, seed in points)
        found = [
            Trial(trial_name(at, seed, alone=names[trial_name(at, seed)] == 1), at, seed, self._recipe(at, seed))
            for at, seed in points
        ]
        known: dict[Any, Trial] = {}
        for one in found:
            # 0 and 0.0 are the same value: counted as two runs they would claim a deviation of zero.
            if (same := known.setdefault(_asked(one), one)) is not one:
                raise SpecError(f"{same.name} and {one.name} are the same run; leave one out")
        return found

    def _recipe(self, at: Mapping[str, object], seed: int) -> Recipe:
        """The recipe, changed by the study for all runs, then by the variant, then by the point of the grid."""
        recipe = read_recipe(self.recipe)
        shared = {"seed": seed, "variants": {}}
        if variant := str(at.get(VARIANT, "")):
            known = {name: found.set for name, found in recipe.variants.items()} | self.variants
            if variant not in known:
                raise SpecError(f"{self.recipe} has no variant {variant!r}{nearest(variant, known)}")
            if fixed := next((field for field in RESERVED if field in known[variant]), ""):
                raise SpecError(f"{self.recipe}: variant {variant!r} sets {fixed}, which the study sets itself")
            own = recipe.variants.get(variant)
            quoted = own.paper if own is not None and variant not in self.variants else {}
            shared |= {"name": f"{recipe.name}-{variant}", "paper": quoted, **known[variant]}
        try:
            recipe = with_fields(recipe, self.set, shared)
            for field, value in at.items():  # one by one: a gate by its name, then a field of that gate
                recipe = with_fields(recipe, {field: value}) if field != VARIANT else recipe
            return recipe
        except SpecError as error:
            raise SpecError(f"{trial_name(at, seed)}: {error}") from None


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    name: str
    at: dict[str, Any]
    seed: int
    recipe: Recipe


def _asked(trial: Trial) -> Any:
    """What is trained, whatever it is called, in a form that can be looked up."""
    return _hashable(trial.recipe.model_copy(update={"name": "", "paper": {}}).to_dict())


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def trial_name(at: Mapping[str, object], seed: int, *, alone: bool = True) -> str:
    """A readable folder name: `gamma=-0.03,zeta=1,seed=0`; with a digest if it is long or not unique."""
    parts = [f"{short(field)}={value}" if field != VARIANT else str(value) for field, value in at.items()]
    name = folder_name(",".join([*parts, f"seed={seed}"]))
    if alone and len(name) <= NAME_LENGTH:
        return name
    digest = hashlib.sha256(repr([sorted(at.items(), key=lambda item: item[0]), seed]).encode()).hexdigest()[:8]
    return f"{name[: NAME_LENGTH - 9]}-{digest}"


def folder_name(text: str) -> str:
    """A name that every file system accepts and that stays inside its folder."""
    return re.sub(r"[^A-Za-z0-9=.,+-]+", "_", text).strip("_.") or "study"


def short(field: str) -> str:
    """`gamma` of `attention.normalizer.gamma`."""
    return field.rpartition(".")[2]


def built_in_studies() -> list[str]:
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def find_study(name: str) -> Path:
    return find_file(name, "study", STUDIES, built_in_studies())


def read_study(path: Path) -> Study:
    """From a YAML file; a recipe may be named relative to it."""
    fields: dict[str, Any] = parse_yaml(path)
    recipe = fields.get("recipe")
    if isinstance(recipe, str) and is_path(recipe) and (beside := path.parent / recipe).is_file():
        fields["recipe"] = str(beside)
    fields.setdefault("name", path.stem)
    try:
        return Study(**fields)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
