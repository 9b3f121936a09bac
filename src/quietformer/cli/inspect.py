"""`quietformer inspect`: does a model have outliers, where, what makes them, will INT8 break, and what to do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from quietformer.cli.progress import progress_bar, working
from quietformer.data.model_inputs import batches_of
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def inspect(
    models: list[str] = typer.Argument(
        ...,
        metavar="MODEL...",
        help="A folder, a .gguf file, a hub id or 'minilm'; several: checkpoints of one run, the last is shown.",
    ),
    texts: Path | None = typer.Option(None, "--texts", metavar="FILE", help="Text to run, one paragraph a line."),
    dataset: str = typer.Option("", "--dataset", metavar="NAME", help="Texts of a dataset (hub name or folder)."),
    images: Path | None = typer.Option(None, "--images", metavar="DIR", help="Images to run (vision models)."),
    sequences: int = typer.Option(64, "--sequences", min=1, help="How many sequences or images."),
    length: int | None = typer.Option(None, "--length", min=3, help="Tokens of a sequence; 128, or as many as fit."),
    batch_size: int = typer.Option(8, "--batch-size", min=1, help="Sequences at a time; figures do not depend on it."),
    seed: int = typer.Option(0, "--seed", help="Chooses the passages of the built-in prose."),
    page: Path = typer.Option(
        Path("outliers.html"), "--page", metavar="PATH", help="The page to write, JSON beside it."
    ),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Write the figures here instead."),
    figures_dir: Path | None = typer.Option(None, "--figures", metavar="DIR", help="Also pictures as PNG and SVG."),
    card: Path | None = typer.Option(
        None, "--card", metavar="PATH", help="Also a fragment for a model card (Markdown)."
    ),
    interventions: bool = typer.Option(True, help="Set outliers to zero and see what the model loses."),
    trust_remote_code: bool = typer.Option(False, "--trust-remote-code", help="Run code that comes with the model."),
) -> None:
    """Find the outliers of MODEL, say what they mean, and write a page."""
    with working("starting"):
        from quietformer.models.open import open_model
        from quietformer.report.page import write_page
        from quietformer.results.inspect import InspectReport
    if page.suffix.lower() not in (".html", ".htm"):
        raise QuietformerError(f"--page takes a name ending in .html, got {page}")
    places = [page, json_path or page.with_suffix(".json"), *([card] if card else [])]
    for place in places:
        check_place(place)
    if len({place.absolute() for place in places}) < len(places):
        raise QuietformerError("--page, --json and --card name the same file; each needs its own")
    if figures_dir is not None and figures_dir.exists() and not figures_dir.is_dir():
        raise QuietformerError(f"{figures_dir} is a file; --figures takes a folder")
    asked = (texts is not None) + bool(dataset) + (images is not None)
    if asked > 1:
        raise QuietformerError("give one of --texts, --dataset and --images")
    growth: list[dict[str, Any]] = []
    report: dict[str, Any] = {}
    for source in models:
        with working(f"loading {source}"):
            model = open_model(source, trust_remote_code=trust_remote_code)
            batches, tokenizer, data = batches_of(
                model, source, texts, dataset, images, sequences, length, batch_size, seed
            )
        report = _inspect_one(model, source, batches, tokenizer, sequences, interventions)
        report["data"] |= data
        growth.append({"model": source, **report["headline"], "severity": report["verdict"]["severity"]})
    report["growth"] = growth if len(growth) > 1 else []
    report["command"] = _command(models, texts, dataset, images, sequences, report["data"].get("length"), seed)
    _print(report)
    json_path = json_path or page.with_suffix(".json")
    write_json(json_path, report)
    write_page(report, page)
    print(f"\npage {page}, figures {json_path}")
    if card is not None:
        from quietformer.report.card import card_fragment

        write_text(card, card_fragment(InspectReport.from_fields(report)))
    if figures_dir is not None:
        with working("drawing"):
            from quietformer.report.plots import draw_plots

            drawn = draw_plots(InspectReport.from_fields(report), figures_dir)
        print(f"{len(drawn)} pictures in {figures_dir}")


def _inspect_one(
    model: PreTrainedModel, source: str, batches: list[Any], tokenizer: Any, count: int, interventions: bool
) -> dict[str, Any]:
    from quietformer.analysis.inspection import inspect as run
    from quietformer.analysis.interventions import intervene

    token_text = None if tokenizer is None else lambda token: str(tokenizer.convert_ids_to_tokens(token))
    special = [] if tokenizer is None else tokenizer.all_special_ids
    mask_token = None if tokenizer is None else tokenizer.mask_token_id
    with progress_bar(f"inspecting {source}", count) as progress:
        figures = run(
            model, batches, token_text=token_text, special_tokens=special, name=source, progress=progress
        ).figures
    figures["interventions"] = []
    if interventions and figures["verdict"]["severity"] != "quiet":
        with working("intervening"):
            few = batches[: max(1, 16 // len(next(iter(batches[0].values()))))]
            figures["interventions"] = intervene(model, few, figures, mask_token)
    return figures


def _command(
    models: list[str], texts: Any, dataset: str, images: Any, sequences: int, length: int | None, seed: int
) -> str:
    words = ["quietformer", "inspect", *models, "--sequences", str(sequences), "--seed", str(seed)]
    for option, value in (("--length", length), ("--texts", texts), ("--dataset", dataset), ("--images", images)):
        words += [option, str(value)] if value else []
    return shlex.join(words)


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    found, model = report["verdict"], report["model"]
    colour = {"broken": "bold red", "worrying": "bold yellow", "quiet": "bold green"}[found["severity"]]
    console.print(
        Text(f"\n{model['name']}", style="bold").append(
            f"  {model['class']}, {model['parameters'] / 1e6:.1f}M parameters"
        )
    )
    console.print(Text(found["sentence"], style=colour))
    for claim in found["claims"]:
        console.print(Text(f"  {claim}"))
    console.print(Text("Next:", style="bold"))
    for step in found["next_steps"]:
        console.print(Text(f"  {step}"))
    rows = {(row["site"], row["layer"]): row for row in report["sites"]}
    table = Table(title="\nTensors that INT8 hurts most", title_justify="left")
    for column in ("tensor", "layer", "max |x|", "kurtosis", "past 6 sigma", "bits left"):
        table.add_column(column, justify="left" if column == "tensor" else "right")
    for place in found["ranked"][:8]:
        row = rows[(place["site"], place["layer"])]
        table.add_row(
            row["site"], str(row["layer"]), f"{max(abs(row['min']), abs(row['max'])):.2f}",
            "-" if row["kurtosis"] is None else f"{row['kurtosis']:,.1f}", f"{row['outliers']:,}", f"{row['int8_bits_left']:.1f}",
        )  # fmt: skip
    console.print(table)
    for row in report["interventions"]:
        console.print(Text(f"  {row['what']}: {row['measure']} {row['before']:.4f} -> {row['after']:.4f}"))
    for row in report["growth"]:
        console.print(
            Text(f"  {row['model']}: infinity norm {row['infinity_norm']:.2f}, kurtosis {row['kurtosis']:,.1f}")
        )
