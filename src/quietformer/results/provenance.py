"""What a result was made with."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "quietformer", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "onnx", "onnxruntime",
    "openvino",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of the packages that decide a result; those that are not installed are left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"python": platform.python_version()}


def command_line(verb: str, arguments: Iterable[object], options: Iterable[str] = ()) -> str:
    """What to type for the same result."""
    return shlex.join(["quietformer", verb, *map(str, arguments), *options])
