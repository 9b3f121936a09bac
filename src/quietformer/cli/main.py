"""Putting the subcommands together; an error a user can cause is one line and exit code 2, too little quality code 3."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import typer

from quietformer.cli import bench, convert, export, inspect, paper, quantize, recipes, retrofit, study, train, variants
from quietformer.cli.options import expanded
from quietformer.errors import QualityError, QuietformerError, QuietformerWarning, in_one_line
from quietformer.files import free_in_words

app = typer.Typer(
    name="quietformer",
    help="Find a transformer's activation outliers, give its attention heads a way to do nothing, and ship it in INT8.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command("variants")(expanded(variants.variants))

app.command("inspect")(expanded(inspect.inspect))

app.command("quantize")(expanded(quantize.quantize))

app.command("export")(expanded(export.export))

app.command("bench")(expanded(bench.bench))

app.command("convert")(expanded(convert.convert))

app.command("train")(expanded(train.train))

app.command("retrofit")(expanded(retrofit.retrofit))

app.command("compare")(expanded(study.compare))

app.command("sweep")(expanded(study.sweep))

app.command("recipes")(expanded(recipes.recipes))

app.command("paper")(expanded(paper.paper))


LIMITS = {
    "Too many open files": "allow more with `ulimit -n`, and run the same command again",
    "can't start new thread": "allow more processes with `ulimit -u`, and run the same command again",
    "File too large": "allow larger files with `ulimit -f`, or choose another file system",
}
"""Limits of the system by what is said of them, and how they are raised; libraries wrap them in errors of many kinds."""

DEBUG = "--debug"

BROKEN_PIPE = 128 + 13
"""The exit code of a program that SIGPIPE has ended."""


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(
        False, DEBUG, help="Show where an error comes from; may stand anywhere."
    ),  # taken by `main`
) -> None:
    if version:
        from quietformer import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the `quietformer` script."""
    debug = DEBUG in sys.argv[1:]
    sys.argv[1:] = [word for word in sys.argv[1:] if word != DEBUG] or ["--help"]
    warnings.showwarning = _note
    sys.stderr = sys.stderr or _nowhere()  # closed by `2>&-`: what is meant for it would go to standard output
    if isinstance(sys.stdout, TextIOWrapper):  # a name that the terminal cannot show is no reason to lose the result
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # whoever reads has seen enough, as with `| head`
            raise SystemExit(BROKEN_PIPE) from None
        raise
    except KeyboardInterrupt:
        raise
    except typer.Abort:
        sys.exit(130)
    except BaseException as error:  # damage that nothing else has recognised, and panics of the tokenizers library
        if debug:
            traceback.print_exc()
        _fail(_message(error), code=3 if isinstance(error, QualityError) else 2)
    sys.exit(code if isinstance(code, int) else 0)


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are one line; those of libraries stay as Python writes them."""
    if issubclass(category, QuietformerWarning):
        _say(f"note: {' '.join(str(message).split())}\n")
    else:
        _say(warnings.formatwarning(message, category, filename, lineno))


def _say(text: str) -> None:
    """On standard error, which may be closed or full; the work and the exit code do not depend on it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _message(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, typer.TyperException):
        return error.format_message() if hasattr(error, "format_message") else str(error)
    if isinstance(error, QuietformerError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "not enough memory; a smaller model, batch or length needs less"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        if not error.filename:
            return f"{error.strerror}; make room where the output goes, and run the same command again"
        place = Path(error.filename)
        return f"{place}: {error.strerror} ({free_in_words(place)}); make room and run the same command again"
    if (remedy := next((told for words, told in LIMITS.items() if words in str(error)), None)) is not None:
        return f"{in_one_line(error, 200)}; {remedy}"
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    what = f"{type(error).__name__}: {in_one_line(error, 200)}"
    if isinstance(error, RecursionError):
        return f"an input is nested too deeply ({what}); {DEBUG} shows where it is read"
    if isinstance(error, UnicodeError):
        return f"an input holds text that is not UTF-8 ({what}); {DEBUG} shows where it is read"
    if isinstance(error, OverflowError):
        return f"an input holds a number that is too large ({what}); {DEBUG} shows where it is read"
    return f"unexpected {what}; an input may be damaged, and {DEBUG} shows where it is read"


def _fail(message: str, code: int = 2) -> None:
    line = " ".join(message.split())
    # A file's name or content is repeated here; a terminal is not to obey it.
    shown = "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in line)
    _say(f"quietformer: {shown}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
