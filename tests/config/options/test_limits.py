"""No number that an option takes is without an upper limit: what is past any machine is refused before it is listed."""

from __future__ import annotations

import importlib
import pkgutil
from typing import get_args

import pytest

import quietformer.config.options as options
from quietformer.config.options.base import Options
from quietformer.errors import SpecError

for _module in pkgutil.iter_modules(options.__path__):
    importlib.import_module(f"{options.__name__}.{_module.name}")


def _kinds(base=Options):
    return [found for kind in base.__subclasses__() for found in (kind, *_kinds(kind))]


NUMBERS = sorted(
    {
        (kind, name)
        for kind in _kinds()
        for name, field in kind.model_fields.items()
        if int in (field.annotation, *get_args(field.annotation))
    },
    key=str,
)


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda part: getattr(part, "__name__", part))
def test_every_count_has_an_upper_limit(kind, name):
    with pytest.raises(SpecError, match=rf"{name} must be <=? \d+, got 1{'0' * 15}"):
        kind(**{name: 10**15})


def test_the_counts_of_the_verbs_are_among_them():
    assert {"seeds", "sequences", "steps", "length", "batch_size", "calibration", "jobs", "seed"} <= {
        n for _, n in NUMBERS
    }
