"""What figures were made with: the command and the versions."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import version


def command_line() -> str:
    """What was typed, to be run again."""
    return shlex.join(["quietformer", *sys.argv[1:]])


def versions(*more: str) -> dict[str, str]:
    """Of what every result depends on, and of packages that matter here besides."""
    return {name: version(name) for name in ("quietformer", "torch", "transformers", *more)}
