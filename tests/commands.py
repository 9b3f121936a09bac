"""What tests of commands share."""

from __future__ import annotations


def fails(run, *arguments):
    """The one line of a command that cannot work."""
    code, _, error = run(*arguments)
    lines = [line for line in error.splitlines() if line.startswith("quietformer: ")]
    assert (code, len(lines)) == (2, 1), error
    assert "Traceback" not in error
    return lines[0]
