"""`quietformer retrofit`: heal a pretrained model so that static INT8 works on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from quietformer.cli.progress import TerminalProgress, working
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json
from quietformer.results.numbers import metric as shown

PAGE = "report.html"


def retrofit(
    model: str = typer.Argument(..., metavar="MODEL", help="A folder, a GGUF file, a hub id or 'minilm'."),
    out: Path = typer.Argument(..., metavar="OUT", help="The folder for the healed model; the same again goes on."),
    gate: str = typer.Option(
        "", "--gate", metavar="SPEC",
        help="A gate, which starts open: linear (the default), mlp, all_heads, elementwise, none.",
    ),
    attention: str = typer.Option(
        "", "--attention", metavar="SPEC", help="A normalizer, e.g. 'clipped_softmax(alpha=4,warmup_steps=200)'."
    ),
    texts: list[str] = typer.Option(
        [], "--texts", metavar="FILE", help="Text to tune on, one paragraph a line, or 'embedded', the default; repeatable."
    ),
    dataset: str = typer.Option("", "--dataset", metavar="NAME", help="Tune on the texts of a dataset of the hub."),
    images: Path | None = typer.Option(None, "--images", metavar="DIR", help="Images to tune on; digits by default."),
    eval_texts: list[Path] = typer.Option(
        [], "--eval-texts", metavar="FILE", help="Other text to measure on; by default a part is held out."
    ),
    eval_images: Path | None = typer.Option(None, "--eval-images", metavar="DIR", help="Other images to measure on."),
    steps: int = typer.Option(1000, "--steps", min=1, help="Steps of fine-tuning."),
    batch_size: int | None = typer.Option(None, "--batch-size", min=1, help="Texts or images a step."),
    length: int | None = typer.Option(None, "--length", min=8, help="Tokens of a sequence at most."),
    learning_rate: float = typer.Option(1e-4, "--learning-rate", min=0.0, help="Peak learning rate."),
    gate_factor: float = typer.Option(10.0, "--gate-factor", min=0.01, help="The gates' rate is this times the others'."),
    penalty: float | None = typer.Option(
        None, "--penalty", min=0.0, help="Strength of the penalty on activations; by the model's width, 0: none."
    ),
    threshold: float | None = typer.Option(
        None, "--threshold", min=0.0, help="Activations up to this cost nothing; by default from the model's own."
    ),
    site: str = typer.Option("ffn_output", "--site", metavar="SITE", help="Which activations the penalty is on."),
    ranges: float | None = typer.Option(
        None, "--ranges", min=0.0,
        help="Strength of the penalty on wide ranges around norms; 1 for post-norm encoders that are not balanced, else 0.",
    ),
    rounding: float = typer.Option(
        0.35, "--rounding", min=0.0, max=1.0, help="Share of the run, at its end, with simulated INT8 in the loop."
    ),
    rotate: bool | None = typer.Option(
        None, help="Start in a basis in which no feature stands out; by default for causal models with RMSNorm."
    ),
    damp: float | None = typer.Option(
        None, "--damp", min=0.001, max=1.0, help="Massive units of gated FFNs start at so much of their size; 0.05 if rotated."
    ),
    balance: float | None = typer.Option(
        None, "--balance", min=0.0, max=1.0, metavar="ALPHA",
        help="How much of the width of a post-norm model's residual features goes into weights and norms first; 0: none.",
    ),
    sequences: int = typer.Option(256, "--sequences", min=4, help="Texts or images to measure on."),
    seeds: int = typer.Option(3, "--seeds", min=1, help="How often to calibrate, each time on other batches."),
    seed: int = typer.Option(0, "--seed", min=0, help="Order of the data, and weights of new gates."),
    changes: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a field of the recipe, e.g. teacher.hidden=2; repeatable."
    ),
    real: bool = typer.Option(True, help="Also export and measure real INT8."),
    force: bool = typer.Option(False, "--force", help="Tune a model that has no outliers all the same."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write the figures here."),
) -> None:  # fmt: skip
    """Heal MODEL so that static INT8 works on it: gates that start open, a penalty on outliers, its own original as teacher.

    Needs no labels. Says what INT8 does to the model before and after, in simulation and for real, and leaves the healed
    model, its INT8 ONNX and a page in OUT. A model without outliers is left alone.
    """
    check_place(json_path)
    if learning_rate <= 0:
        raise QuietformerError(f"--learning-rate must be above 0, got {learning_rate:g}")
    if out.is_dir() and Path(model).is_dir() and out.samefile(model):
        raise QuietformerError(f"{out} is MODEL itself; choose another place")
    with working("starting"):
        from quietformer.config.recipe import Source
        from quietformer.report.page import write_page
        from quietformer.training.interrupt import StoppedError
        from quietformer.workflows.retrofit import RetrofitOptions
        from quietformer.workflows.retrofit import retrofit as heal
        from quietformer.workflows.retrofit_recipe import attention_for_pretrained

        attention_for_pretrained(attention, gate)  # a typo is told before anything is loaded

        options = RetrofitOptions(
            attention=attention, gate=gate,
            sources=_sources(texts, dataset, images, Source),
            evaluation=[Source(path=_there(path)) for path in (*eval_texts, *([eval_images] if eval_images else []))],
            images=_images(bool(texts or dataset or eval_texts), bool(images or eval_images)),
            steps=steps, batch_size=batch_size, length=length, learning_rate=learning_rate, gate_factor=gate_factor,
            penalty=penalty, threshold=threshold, site=site, ranges=ranges, rounding=rounding, rotate=rotate, damp=damp,
            balance=balance, seed=seed, sequences=sequences, seeds=seeds,
            real=real, force=force, changes=changes,
        )  # fmt: skip
    if real:
        _need_onnx()
    try:
        with TerminalProgress() as told:
            figures = heal(model, out, options, say=told.say, tell=told.step)
    except StoppedError as stopped:
        print(stopped, file=sys.stderr, flush=True)
        raise typer.Exit(130) from None
    write_json(json_path, figures)
    if not figures["changed"]:
        print(
            f"{figures['sentence']} {model} is left alone, and nothing is written to {out}; --force tunes it all the same."
        )
        for claim in figures["before"]["inspect"]["verdict"]["claims"]:
            print(f"  {claim}")
        return
    write_page(figures, out / PAGE)
    _print(figures, out)


def _sources(texts: list[str], dataset: str, images: Path | None, source: Any) -> list[Any]:
    if bool(texts) + bool(dataset) + (images is not None) > 1:
        raise QuietformerError("give one of --texts, --dataset and --images")
    if dataset:
        return [source(dataset=dataset)]
    if images is not None:
        return [source(path=_there(images))]
    return [source.read(text) if text == "embedded" else source(path=_there(Path(text))) for text in texts]


def _images(text: bool, images: bool) -> bool | None:
    if text and images:
        raise QuietformerError("give text or images, not both")
    return images if text or images else None


def _there(path: Path) -> str:
    if not path.exists():
        raise QuietformerError(f"{path} is not there")
    return str(path)


def _need_onnx() -> None:
    try:
        import onnx_ir  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise QuietformerError(
            "real INT8 needs ONNX and onnxruntime; pip install quietformer[onnx], or give --no-real"
        ) from None


def _print(figures: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    console.print(Text(f"\n{figures['sentence']}", style="bold"))
    title = f"\n{figures['model']['name']}, {figures['attention']}, {figures['steps']:,} steps, {figures['minutes']:.1f} minutes"
    table = Table(title=title, title_justify="left")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    for row in table_rows(figures):
        table.add_row(*row)
    console.print(table)
    if figures["recipe"]["model"].get("balance"):
        console.print(
            "After balancing, FFN outputs are in the units they are quantized in; their gains are inside the norms."
        )
    if alone := figures.get("balanced_alone"):
        measure = figures["primary"]
        values = ", ".join(f"{shown(alone[kind][measure]['mean'], measure)} {kind.replace('_', '-')}" for kind in alone)
        console.print(f"Balanced and not trained, simulated W8A8: {measure} {values}.")
    if error := (figures["after"]["real"] or {}).get("error"):
        console.print(f"real INT8 was not written: {error}")
    best = figures["best"]
    print(f"\nkept: step {best['step']} of {figures['steps']}, the best in simulated INT8 during training")
    print(f"model in {out}, page {out / PAGE}, figures {out / 'retrofit.json'}")
    if (out / "int8").is_dir():
        print(f"INT8 ONNX (per-channel weights) in {out / 'int8'}")


def table_rows(figures: dict[str, Any]) -> list[list[str]]:
    """What is printed of both sides, line by line."""
    rows = []
    for row in figures["rows"]:
        measure = row["what"].rpartition(": ")[2]
        rows.append([row["what"].replace("_", " "), *(_number(row[side], measure) for side in ("before", "after"))])
    return rows


def _number(value: float | None, measure: str) -> str:
    if value is None:
        return "-"
    if measure in ("cosine", "neighbour_agreement", "token_agreement", "agreement", "top1", "perplexity", "loss"):
        return shown(value, measure)
    return f"{value:,.1f}"
