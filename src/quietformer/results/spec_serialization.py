"""Specs as fields of reports: a report holds the spec itself, its JSON the spec's own form."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from quietformer.config.attention import AttentionSpec
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe import Recipe
from quietformer.config.spec_base import JsonObject, Spec, nested
from quietformer.config.study import Measures, Study


def _plain(spec: Spec) -> JsonObject:
    return spec.to_dict()


AS_ITS_JSON = PlainSerializer(_plain, return_type=dict)
RecipeField = Annotated[Recipe, BeforeValidator(lambda value: nested(Recipe, value)), AS_ITS_JSON]
MeasuresField = Annotated[Measures, BeforeValidator(lambda value: nested(Measures, value)), AS_ITS_JSON]
AttentionSpecField = Annotated[AttentionSpec, BeforeValidator(lambda value: nested(AttentionSpec, value)), AS_ITS_JSON]
QuantSpecField = Annotated[QuantSpec, BeforeValidator(lambda value: nested(QuantSpec, value)), AS_ITS_JSON]
StudyField = Annotated[Study, BeforeValidator(lambda value: nested(Study, value)), AS_ITS_JSON]
