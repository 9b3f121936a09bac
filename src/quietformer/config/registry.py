"""Registries: names for the classes of one kind, which the CLI, JSON and tests know them by."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic

from quietformer.config.spec_base import S, Spec, nearest
from quietformer.errors import SpecError


class Registry(Generic[S]):
    """Names for the classes of one kind; registering is what makes the CLI, JSON and tests know a class."""

    everywhere: ClassVar[list[Registry[Any]]] = []

    def __init__(self, what: str, home: str) -> None:
        self.what = what
        self.home = home  # the package, or module, whose files register the classes
        self._registered: dict[str, type[S]] = {}
        self._complete = False
        self.everywhere.append(self)

    @property
    def _classes(self) -> dict[str, type[S]]:
        """Every file of the home is imported by the first question, not before: names alone must not cost torch."""
        if not self._complete:
            home = importlib.import_module(self.home)
            for module in pkgutil.iter_modules(getattr(home, "__path__", ())):
                importlib.import_module(f"{self.home}.{module.name}")
            self._complete = True
        return self._registered

    def register(self, name: str) -> Callable[[type[S]], type[S]]:
        def add(cls: type[S]) -> type[S]:
            if name in self._registered:
                raise ValueError(f"{self.what} {name!r} is registered twice")
            cls.kind = name
            self._registered[name] = cls
            return cls

        return add

    def __getitem__(self, name: str) -> type[S]:
        if name not in self._classes:
            if others := sorted(other.what for other in self.everywhere if name in other._classes):
                raise SpecError(f"{name!r} is a {' or a '.join(others)}, not a {self.what}")
            raise SpecError(f"unknown {self.what} {name!r}{nearest(name, self._classes)}")
        return self._classes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def read(self, value: Any) -> S:
        """A spec from a spec, its JSON form, or its text form."""
        if isinstance(value, Spec):
            if value.kind not in self._classes or type(value) is not self._classes[value.kind]:
                raise SpecError(f"{type(value).__name__} is not a {self.what}")
            return value
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(value, Mapping):
            fields = dict(value)
            if not isinstance(kind := fields.pop("kind", None), str):
                raise SpecError(f"a {self.what} needs a 'kind': one of {', '.join(self)}")
            return self[kind](**fields)
        raise SpecError(f"a {self.what} is a spec, a mapping or text like 'name(field=value)', got {value!r}")

    def parse(self, text: str) -> S:
        """`clipped_softmax(alpha=4)` or just `softmax`; values are Python literals, nothing is evaluated."""
        try:
            node = ast.parse(text.strip(), mode="eval").body
            call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
            if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
                raise ValueError
            fields = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            if len(fields) != len(call.keywords):
                raise ValueError("a field twice")
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise SpecError(
                f"cannot read {self.what} {text!r}; write name(field=value), e.g. '{self._example()}'"
            ) from None
        return self[call.func.id](**fields)

    def _example(self) -> str:
        name = next(iter(self))
        return f"{name}({', '.join(f'{field}=...' for field in list(self[name].model_fields)[:1])})"
