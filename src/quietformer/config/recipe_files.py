"""Recipes as YAML: found by name or path, built on one another, changed from the command line, written back resolved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from quietformer.config.recipe import Recipe, is_path
from quietformer.config.recipe_upgrades import upgraded, upgraded_key
from quietformer.config.spec_base import JsonObject, nearest
from quietformer.errors import SpecError, in_one_line
from quietformer.files import check_regular, kind_of, write_text

BUILT_IN = Path(__file__).parent.parent / "recipes"

DEFAULT = "small/opt"

UNREADABLE = (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError)
"""What yaml raises; the last of a date, a number or a truth value that there is not."""

SHOWN = 80
"""Characters of a value that an error repeats."""

DEEPEST, MOST_VALUES = 30, 100_000
"""Levels of a file, and values in it once its aliases are written out."""

EXCLUSIVE = (
    ("training", "steps", "epochs", 0),
    ("schedule", "warmup_steps", "warmup_epochs", 0),
    ("attention.normalizer", "gamma", "alpha", None),
)
"""Fields of a section of which one is given, and what stands for none: naming one in a change takes the other back."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe, with two of YAML's traps removed: 1e-4 is a number here, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} twice", key.start_mark)
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes text that `_Loader` would read as a number."""


INTEGER, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"

# YAML 1.1 reads 1:30 as ninety and 017 as fifteen: here such things are text, which a number's field refuses.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in (INTEGER, FLOAT)]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(INTEGER, re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)

for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def _from_yaml(text: str) -> Any:
    """Numbers, text, lists and mappings; a tag that would build anything else is an error of the SafeLoader."""
    _check_depth(text)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _weigh(node, {}, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_depth(text: str) -> None:
    """By its events, of which none holds another: everything else that reads YAML calls itself for each level."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError(f"it is nested deeper than {DEEPEST} levels")


def _weigh(node: yaml.Node, known: dict[int, tuple[int, int]], above: set[int]) -> tuple[int, int]:
    """Values and levels a node stands for, aliases written out: a few lines of them stand for more than any memory holds."""
    if id(node) in above:
        raise yaml.YAMLError("an alias stands for something that it is part of")
    if id(node) not in known:
        within = above | {id(node)}
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        below = [] if isinstance(node, yaml.ScalarNode) else [_weigh(part, known, within) for part in parts]
        values, levels = 1 + sum(count for count, _ in below), 1 + max((depth for _, depth in below), default=0)
        if values > MOST_VALUES or levels > DEEPEST:
            raise yaml.YAMLError(
                f"aliases written out, it holds more than {MOST_VALUES} values or is nested deeper than {DEEPEST} levels"
            )
        known[id(node)] = values, levels
    return known[id(node)]


def built_in_recipes() -> list[str]:
    """`paper/bert-base`, `small/opt`, ...; a name that begins with an underscore is only built upon."""
    found = (path.relative_to(BUILT_IN) for path in BUILT_IN.glob("*/*.yaml") if not path.stem.startswith("_"))
    return sorted(path.with_suffix("").as_posix() for path in found)


def read_recipe(name: str, *, variant: str = "", changes: Iterable[str] = ()) -> Recipe:
    """A recipe by built-in name or path, with a variant of it and `key=value` changes applied in this order."""
    path = find_recipe(name)
    fields = _read(path, seen=())
    if variant:
        fields = _with_variant(fields, variant, name)
    for change in changes:
        _apply(fields, *_split(change))
    try:
        return _recipe(fields)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None


def _recipe(fields: dict[str, Any]) -> Recipe:
    """What JSON has no word for, and YAML does (dates, infinities), could not be written back."""
    recipe = Recipe(**fields)
    try:
        json.dumps(recipe.to_dict(), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(f"a value is neither number, text, list nor mapping: {error}") from None
    return recipe


def changed(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """The recipe with `key=value` changes applied."""
    return with_fields(recipe, read_changes(changes))


def read_changes(changes: Iterable[str]) -> JsonObject:
    """Fields and their values from `key=value`."""
    return dict(map(_split, changes))


def with_fields(recipe: Recipe, *several: Mapping[str, Any]) -> Recipe:
    """The recipe with dotted fields set, in their order, of one mapping after the other."""
    fields = recipe.to_dict()
    for values in several:
        for key, value in values.items():
            _apply(fields, key, value)
    return _recipe(fields)


def write_recipe(path: Path, recipe: Recipe) -> None:
    """The resolved recipe, every field written out, so that later defaults cannot change it."""
    write_text(path, f"# Resolved by quietformer: every field as it was run.\n{as_yaml(recipe)}")


def as_yaml(recipe: Recipe) -> str:
    text: str = yaml.dump(recipe.to_dict(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def find_recipe(name: str) -> Path:
    return find_file(name, "recipe", BUILT_IN, built_in_recipes())


def find_file(name: str, what: str, home: Path, built_in: list[str]) -> Path:
    """A YAML file as it is named, or one that is built in."""
    path = Path(name) if is_path(name) else home / f"{name}.yaml"
    try:
        if path.is_file():
            return path
    except OSError as error:
        raise SpecError(f"{name[:40]!r} names no {what}: {error.strerror}{nearest(name[:40], built_in)}") from None
    if Path(name).is_dir():
        raise SpecError(f"{name} is a folder; give a {what} file, or one of {', '.join(built_in)}")
    if is_path(name):
        what_stands = kind_of(Path(name)) if os.path.lexists(name) else "not there"
        raise SpecError(f"{name} is {what_stands}; give a {what} file, or one of {', '.join(built_in)}")
    hint = f", or {name}.yaml" if Path(f"{name}.yaml").is_file() else ""
    raise SpecError(f"unknown {what} {name!r}{hint}{nearest(name, built_in)}")


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if Path(os.path.realpath(path)) in seen:
        raise SpecError(f"{path} extends itself, by way of {seen[-1].name}")
    fields = upgraded(parse_yaml(path))
    base = fields.pop("extends", None)
    if base is None:
        return fields
    if not isinstance(base, str):
        raise SpecError(f"{path}: extends names one recipe, got {base!r}")
    beside = path.parent / base
    below = _read(
        beside if is_path(base) and beside.is_file() else find_recipe(base), (*seen, Path(os.path.realpath(path)))
    )
    return _merged(below, fields)


def parse_yaml(path: Path) -> JsonObject:
    check_regular(path, SpecError)
    try:
        content = _from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is no text file; give one in YAML") from None
    except UNREADABLE as error:
        raise SpecError(f"{path} is not YAML: {in_one_line(error)}") from None
    if content is None:
        raise SpecError(f"{path} is empty; it must hold fields and their values")
    if not isinstance(content, dict):
        raise SpecError(f"{path} must hold a mapping of fields, got {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def _with_variant(fields: dict[str, Any], variant: str, recipe: str) -> dict[str, Any]:
    variants = fields.get("variants") or {}
    if variant not in variants:
        raise SpecError(f"{recipe} has no variant {variant!r}{nearest(variant, map(str, variants))}")
    chosen = variants[variant] or {}
    if not isinstance(chosen, dict) or not isinstance(chosen.get("set", {}), dict):
        raise SpecError(f"{recipe}: variant {variant!r} must be a mapping with 'set' and 'paper'")
    fields = dict(fields, name=f"{fields.get('name', Path(recipe).stem)}-{variant}", variants={})
    if "paper" in chosen:
        fields["paper"] = chosen["paper"]
    for key, value in chosen.get("set", {}).items():
        _apply(fields, str(key), value)
    return fields


def _split(change: str) -> tuple[str, Any]:
    key, sign, text = change.partition("=")
    if not sign or not key.strip():
        raise SpecError(f"cannot read {change!r}; write KEY=VALUE, e.g. --set training.steps=100")
    try:
        return key.strip(), _from_yaml(text)
    except UNREADABLE:
        raise SpecError(f"cannot read the value of {change[:SHOWN]!r}") from None


def _apply(fields: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted field, making the mappings on its way copies of their own."""
    *way, last = upgraded_key(key).split(".")
    place = fields
    for depth, step in enumerate(way):
        below = place.get(step)
        if below is not None and not isinstance(below, dict):
            raise SpecError(f"cannot set {key}: {'.'.join(way[: depth + 1])} is {below!r}, not a mapping")
        place[step] = dict(below or {})
        place = place[step]
    place[last] = value
    for section, one, other, none in EXCLUSIVE:
        if ".".join(way) == section and last in (one, other) and value != none:
            place.pop(other if last == one else one, None)


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Section by section, field by field; a spec with a kind is replaced whole."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and "kind" not in old and "kind" not in value:
            for section, one, other, _ in EXCLUSIVE:
                if key == section and (value.get(one) or value.get(other)):
                    old = {name: item for name, item in old.items() if name not in (one, other)}
            value = _merged(old, value)
        result[key] = value
    return result
