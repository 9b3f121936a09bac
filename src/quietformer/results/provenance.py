"""What figures were made with: the command and the versions."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import version


def command_line() -> str:
    """What was typed, to be run again."""
    return shlex.join(["quietformer", *sys.argv[1:]])


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("quietformer", "torch", "transformers")}
