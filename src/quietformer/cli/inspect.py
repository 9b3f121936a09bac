"""`quietformer inspect`: does a model have outliers, where, what makes them, will INT8 break, and what to do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from quietformer.cli.output import progress_bar, working
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json, write_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel


DEFAULT_LENGTH = 128
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.spm", "*.tiktoken", "bpe.codes")


def inspect(
    models: list[str] = typer.Argument(
        ...,
        metavar="MODEL...",
        help="A folder, a hub id or 'minilm'; several: checkpoints of one run, the last is shown.",
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
        from quietformer.report.page import write_page
        from quietformer.sources import open_model
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
            batches, tokenizer, data = _batches(
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

        write_text(card, card_fragment(report))
    if figures_dir is not None:
        with working("drawing"):
            from quietformer.report.figures import draw_figures

            drawn = draw_figures(report, figures_dir)
        print(f"{len(drawn)} pictures in {figures_dir}")


def _inspect_one(
    model: PreTrainedModel, source: str, batches: list[Any], tokenizer: Any, count: int, interventions: bool
) -> dict[str, Any]:
    from quietformer.analysis.inspect import inspect as run
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


def _batches(
    model: PreTrainedModel, source: str, texts: Path | None, dataset: str, images: Path | None,
    count: int, length: int | None, batch_size: int, seed: int,
) -> tuple[list[Any], Any, dict[str, Any]]:  # fmt: skip
    from quietformer.data import images as image_data
    from quietformer.data import texts as text_data

    vision = model.main_input_name == "pixel_values"
    if vision:
        if texts is not None or dataset:
            raise QuietformerError(f"{type(model).__name__} takes images; give --images DIR")
        size, channels = _image_size(model)
        if images is None:
            pixels, _ = image_data.digit_images(count=count, size=size, channels=channels)
        else:
            pixels = image_data.folder_images(images, count=count, size=size, channels=channels)
        described = "scikit-learn's digits" if images is None else str(images)
        return list(image_data.image_batches(pixels, batch_size=batch_size)), None, {"source": described}
    if images is not None:
        raise QuietformerError(f"{type(model).__name__} takes text; give --texts FILE")
    longest: Any = getattr(model.config, "max_position_embeddings", None)
    learned = isinstance(longest, int) and not hasattr(model.config, "relative_attention_num_buckets")
    length = (min(DEFAULT_LENGTH, longest) if learned else DEFAULT_LENGTH) if length is None else length
    if learned and length > longest:
        raise QuietformerError(f"--length {length} is longer than the {longest} positions of {type(model).__name__}")
    tokenizer = _tokenizer(source)
    chosen = text_data.read_texts(texts) if texts is not None else text_data.dataset_texts(dataset) if dataset else None
    found = text_data.token_sequences(chosen, tokenizer, count=count, length=length, seed=seed)
    embeddings: Any = model.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    if max(map(max, found)) >= vocabulary:
        raise QuietformerError(
            f"the tokenizer gives ids past the model's vocabulary of {vocabulary}; they do not belong together"
        )
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    described = str(texts) if texts is not None else dataset or "built-in prose (documentation of installed packages)"
    return (
        list(text_data.text_batches(found, pad=pad, batch_size=batch_size)),
        tokenizer,
        {"source": described, "length": length, "seed": seed},
    )


def _tokenizer(source: str) -> Any:
    from transformers import AutoTokenizer

    from quietformer.sources import resolve

    folder = Path(resolve(source))
    # Without files transformers makes an empty tokenizer that knows no word, and says nothing.
    if folder.is_dir() and not any(path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)):
        raise QuietformerError(f"{source} has no tokenizer; save one into the folder")
    try:
        return (
            AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            if folder.is_dir()
            else AutoTokenizer.from_pretrained(source)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise QuietformerError(f"{source} has no tokenizer that loads; save one into the folder") from None


def _image_size(model: PreTrainedModel) -> tuple[int, int]:
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", 224)
    return (size if isinstance(size, int) else size[0]), getattr(config, "num_channels", 3)


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

    console = Console(highlight=False)
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
