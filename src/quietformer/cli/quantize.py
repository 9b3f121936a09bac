"""`quietformer quantize`: the paper's simulated quantization of any model, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from quietformer.cli.progress import Steps, working
from quietformer.cli.quantization import (
    ActsOption,
    BalanceOption,
    BatchSizeOption,
    BitsOption,
    CalibrationOption,
    DatasetOption,
    EvalTextsOption,
    GateOption,
    HeadOption,
    ImagesOption,
    KeepOption,
    LengthOption,
    Options,
    PerChannelOption,
    Quantized,
    SequencesOption,
    TextsOption,
    TrustOption,
    WeightsOption,
    open_source,
    quantize_model,
    shown,
)
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json


def quantize(
    model: str = typer.Argument(..., metavar="MODEL", help="A folder, a .gguf file, a hub id or 'minilm'."),
    bits: BitsOption = "w8a8",
    weights: WeightsOption = "minmax",
    acts: ActsOption = "running-minmax",
    per_channel: PerChannelOption = False,
    seeds: int = typer.Option(3, "--seeds", min=1, help="How often to calibrate, each time on other batches."),
    search: bool = typer.Option(False, "--search", help="Choose the estimator for activations by trying them all."),
    keep: KeepOption = None,
    balance: BalanceOption = False,
    gate: GateOption = False,
    head: HeadOption = False,
    texts: TextsOption = None,
    eval_texts: EvalTextsOption = None,
    dataset: DatasetOption = "",
    images: ImagesOption = None,
    sequences: SequencesOption = 64,
    calibration: CalibrationOption = 16,
    batch_size: BatchSizeOption = 8,
    length: LengthOption = None,
    plan_only: bool = typer.Option(False, "--plan", help="Only say what would be quantized, and what not and why."),
    sensitivity: bool = typer.Option(
        False, "--sensitivity", help="Also measure every site alone and all but every site (slow)."
    ),
    out: Path | None = typer.Option(None, "--out", metavar="DIR", help="Save the quantized model, for load and export."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a model that is in DIR already."),
    page: Path = typer.Option(Path("quantized.html"), "--page", metavar="PATH", help="The page to write, JSON beside it."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Write the figures here instead."),
    trust_remote_code: TrustOption = False,
) -> None:  # fmt: skip
    """Quantize MODEL in simulation, and say what it costs and which tensors are to blame."""
    options = Options(
        bits, weights, acts, per_channel, keep or [], gate, head, texts, eval_texts, dataset, images, sequences, calibration,
        batch_size, length, balance,
    )  # fmt: skip
    json_path = json_path or (None if plan_only else page.with_suffix(".json"))
    _check(options, page, json_path, out, overwrite, model)
    with working("starting"):
        from quietformer.analysis.quantized_quality import describe_sites, measure_sensitivity
        from quietformer.quant.calibration import plan_quantization
        from quietformer.report.page import write_page

        spec = options.spec()
    opened, data, task = open_source(model, options, trust_remote_code)
    if plan_only:
        plan = plan_quantization(opened, spec, data.evaluation[0])
        _print_plan(plan)
        write_json(json_path, plan.info().model_dump())
        return
    found = quantize_model(opened, model, data, task, spec, seeds=seeds, search=search, balance=balance)
    with Steps() as steps:
        if sensitivity:
            found.figures["sensitivity"] = measure_sensitivity(opened, found.plan, data, task, steps)
        else:
            found.figures["sensitivity"] = describe_sites(opened, found.plan, data.evaluation[:2])
    _print(found)
    write_json(json_path, found.figures)
    write_page(found.figures, page)
    print(f"\npage {page}, figures {json_path}")
    if out is not None:
        with working(f"writing {out}"):
            from quietformer.models.open import gguf_file
            from quietformer.models.save import save

            save(opened, out, processor=data.tokenizer if gguf_file(model) else None)
        print(
            f'quantized model in {out}; load it with quietformer.load("{out}"), ship it with quietformer export {out} OUT'
        )


def _check(options: Options, page: Path, json_path: Path | None, out: Path | None, overwrite: bool, model: str) -> None:
    options.check()
    if page.suffix.lower() not in (".html", ".htm"):
        raise QuietformerError(f"--page takes a name ending in .html, got {page}")
    check_place(page)
    check_place(json_path)
    if json_path is not None and json_path.absolute() == page.absolute():
        raise QuietformerError("--page and --json name the same file; each needs its own")
    if out is not None:
        check_out(out, model, overwrite)
        if out.is_dir() and any(out.iterdir()) and not (out / "config.json").is_file():
            raise QuietformerError(f"{out} exists and is not a model folder; choose another place")


def check_out(out: Path, model: str, overwrite: bool) -> None:
    """Whether a folder can be written there, asked before the work."""
    if out.is_dir() and Path(model).is_dir() and out.samefile(model):
        raise QuietformerError(f"{out} is MODEL itself; choose another place")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise QuietformerError(f"{out} is there already; choose another place or pass --overwrite")
    if out.resolve() == Path.cwd():
        raise QuietformerError(f"{out} is the folder you are in; give the name of a new one")
    if out.exists() and not out.is_dir():
        raise QuietformerError(f"{out} is a file; give the name of a folder")


def _print_plan(plan: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    table = Table(title=f"{plan.spec.label}: quantized", title_justify="left")
    for column in ("short name", "grid", "site"):
        table.add_column(column, overflow="fold")
    for site in plan.sites:
        table.add_row(site.short if site.short != site.name else "", str(site.grid), site.name)
    console.print(f"{plan.count('weight')} weights and {plan.count('activation')} activations would be quantized.")
    console.print(
        "Grids: s8 is symmetric with 8 bits, u8 asymmetric, s8@0 has a scale for each channel of dimension 0."
    )
    console.print(table)
    if plan.left:
        table = Table(title="\nleft in floating point", title_justify="left")
        table.add_column("site", overflow="fold")
        table.add_column("why", overflow="fold")
        for item in plan.left:
            table.add_row(item.name, item.why)
        console.print(table)


def _print(found: Quantized) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from quietformer.analysis.quantized_quality import in_words

    console = Console(highlight=False, markup=False)
    figures, primary = found.figures, found.figures["primary"]
    model = figures["model"]
    console.print(
        Text(f"\n{model['name']}", style="bold").append(
            f"  {model['class']}, {model['parameters'] / 1e6:.1f}M parameters"
        )
    )
    console.print(Text(str(found.plan)))
    console.print(Text(in_words(figures), style="bold"))
    if figures["search"]:
        table = Table(title="\nEstimators of activations, on the calibration data", title_justify="left")
        table.add_column("activations")
        table.add_column(primary, justify="right")
        for row in figures["search"]:
            table.add_row(row["activations"], shown(row["figures"][primary], primary))
        console.print(table)
    runs = figures["runs"]
    unit = "images" if figures["task"] == "images" else "sequences"
    title = f"\n{figures['label']}, {figures['data']['evaluation_sequences']} {unit}, {len(runs)} calibrations"
    table = Table(title=title, title_justify="left")
    for column in ("measure", "floating point", "quantized"):
        table.add_column(column, justify="left" if column == "measure" else "right", no_wrap=True)
    for name, value in figures["float"].items():
        mean, std = figures["quantized"][name]["mean"], figures["quantized"][name]["std"]
        deviation = f" ± {std:.4f}" if std is not None and len(runs) > 1 else ""
        table.add_row(name, shown(value, name), f"{shown(mean, name)}{deviation}")
    console.print(table)
    measured = figures["sensitivity"]["measure"]
    table = Table(title=f"\n{'Most harmful' if measured else 'Noisiest'} tensors", title_justify="left")
    columns = (
        "tensor",
        "grid",
        "range",
        "SQNR dB",
        *((f"{measured}, it alone", f"{measured}, all but it") if measured else ()),
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "tensor" else "right")
    for row in figures["sensitivity"]["rows"][:8]:
        noise = "-" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"
        extra = (shown(row["only"], measured), shown(row["without"], measured)) if measured else ()
        table.add_row(row["short"], row["grid"], f"{row['lo'] + 0.0:.3g} .. {row['hi']:.3g}", noise, *extra)
    console.print(table)
