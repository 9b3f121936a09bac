"""Putting the subcommands together; an error a user can cause is one line and exit code 2, too little quality code 3."""

from __future__ import annotations

import sys

import typer

from quietformer.cli import bench, convert, export, inspect, paper, quantize, recipes, retrofit, study, train, variants
from quietformer.cli.options import expanded
from quietformer.errors import QualityError, QuietformerError

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


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from quietformer import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the `quietformer` script."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(130)
    except typer.TyperException as error:
        _fail(error.format_message() if hasattr(error, "format_message") else str(error))
    except QualityError as error:
        _fail(str(error), code=3)
    except QuietformerError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int = 2) -> None:
    print(f"quietformer: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
