"""`quietformer export`: real INT8 as an ONNX model, checked against the simulation, measured, beside what others give."""

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
    SequencesOption,
    TextsOption,
    TrustOption,
    WeightsOption,
    open_source,
    quantize_model,
    shown,
)
from quietformer.cli.quantize import check_out
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json
from quietformer.results.provenance import command_line, versions


def export(
    context: typer.Context,
    model: str = typer.Argument(..., metavar="MODEL", help="A quantized folder, any other folder, a hub id or 'minilm'."),
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to write."),
    bits: BitsOption = "w8a8",
    weights: WeightsOption = "minmax",
    acts: ActsOption = "running-minmax",
    per_channel: PerChannelOption = False,
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
    weight_type: str = typer.Option(
        "auto", "--weight-type", metavar="TYPE",
        help="How weights are stored: uint8 is exact everywhere, int8 faster; auto takes int8 if it changed nothing here.",
    ),
    keep_float: bool = typer.Option(False, "--keep-float", help="Also keep the floating point ONNX model."),
    threads: int | None = typer.Option(None, "--threads", min=1, help="Threads for the latencies; all by default."),
    baselines: bool = typer.Option(False, "--baselines", help="Also what onnxruntime's own tools and SmoothQuant give."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace what is in OUT already."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write the figures here."),
    trust_remote_code: TrustOption = False,
) -> None:  # fmt: skip
    """Write MODEL to OUT as INT8 ONNX that agrees with the simulation, and measure it.

    A folder that `quietformer quantize --out` wrote is exported as it was calibrated; any other model is calibrated first.
    """
    options = Options(
        bits, weights, acts, per_channel, keep or [], gate, head, texts, eval_texts, dataset, images, sequences, calibration,
        batch_size, length, balance,
    )  # fmt: skip
    options.check()
    if weight_type not in ("auto", "int8", "uint8"):
        raise QuietformerError(f"--weight-type is auto, int8 or uint8, got {weight_type!r}")
    check_out(out, model, overwrite)
    check_place(json_path)
    with working("starting"):
        try:
            from quietformer.deployment.onnx_export import INTEGER, export_onnx
            from quietformer.deployment.onnx_runtime import OnnxModel
        except ImportError:
            raise QuietformerError("export needs ONNX and onnxruntime; pip install quietformer[onnx]") from None
        from quietformer.analysis.evaluate import evaluate

        spec = options.spec()
    opened, data, task = open_source(model, options, trust_remote_code)
    _check_not_calibrated_otherwise(context, opened, model)
    figures, reference = _quantized(opened, model, data, task, spec, balance)
    with Steps() as steps:
        result = export_onnx(
            opened, out, data.evaluation, processor=data.tokenizer, weight_type=weight_type,  # type: ignore[arg-type]
            keep_float=keep_float, threads=threads, tell=lambda what: steps(what, 0, 0),
        )  # fmt: skip
        steps("evaluating INT8", 0, 0)
        real = evaluate(OnnxModel(out / INTEGER), data.evaluation, task, reference)
        figures |= {"real": real.to_dict()["figures"], "export": result.to_dict(), "baselines": []}
        if baselines:
            figures["baselines"] = _baselines(opened, data, task, reference, steps)
    _print(figures, out)
    write_json(out / "figures.json", figures)
    write_json(json_path, figures)


def _check_not_calibrated_otherwise(context: typer.Context, opened: Any, model: str) -> None:
    """A folder that is quantized already is what it is; an option that asks for something else would be ignored."""
    from quietformer.config.recorded_changes import changes_of

    if changes_of(opened).quantized is None:
        return
    for name in ("bits", "weights", "acts", "per_channel", "keep", "balance", "gate", "head"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise QuietformerError(
                f"{model} is quantized already and is exported as it was calibrated; leave out --{name.replace('_', '-')}, or "
                "export the model it was made from"
            )


def _quantized(model: Any, source: str, data: Any, task: str, spec: Any, balance: bool) -> tuple[dict[str, Any], Any]:
    """The figures of the simulation; a model that comes quantized is taken as it is."""
    from quietformer.analysis.evaluate import evaluate, reference_run
    from quietformer.config.recorded_changes import changes_of
    from quietformer.quant.calibration import floating_point

    quantized = changes_of(model).quantized
    if quantized is None:
        found = quantize_model(model, source, data, task, spec, seeds=1, search=False, balance=balance)
        return found.figures | {"kind": "export"}, found.reference
    with working("evaluating"):
        with floating_point(model):
            reference = reference_run(model, data.evaluation, task)
        simulated = evaluate(model, data.evaluation, task, reference).to_dict()["figures"]
    evaluation = reference.evaluation
    return {
        "version": 1,
        "kind": "export",
        "model": {"name": source, "class": type(model).__name__, "parameters": model.num_parameters()},
        "label": quantized.spec.label,
        "spec": quantized.spec.to_dict(),
        "task": task,
        "primary": evaluation.primary,
        "better": evaluation.better,
        "float": evaluation.to_dict()["figures"],
        "runs": [{"seed": 0, "figures": simulated}],
        "data": data.described,
        "command": command_line(),
        "versions": versions(),
    }, reference


def _baselines(model: Any, data: Any, task: str, reference: Any, steps: Steps) -> list[dict[str, Any]]:
    from quietformer.config.recorded_changes import changes_of
    from quietformer.deployment.baselines import compare_baselines

    quantized = changes_of(model).quantized
    assert quantized is not None
    spec = quantized.spec
    return compare_baselines(
        model, data.calibration(0), data.evaluation, task, reference, spec, tell=lambda what: steps(what, 0, 0)
    )


def _print(figures: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    names, result = list(figures["float"]), figures["export"]
    table = Table(title=f"\n{figures['model']['name']}, {figures['label']}", title_justify="left")
    for column in ("what", *names, "MB"):
        table.add_column(column, justify="left" if column == "what" else "right")
    sizes = {name: f"{size / 1e6:.1f}" for name, size in result["bytes"].items()}
    rows = [
        ("floating point ONNX", figures["float"], sizes["fp32"]),
        ("simulated", figures["runs"][0]["figures"], ""),
        ("real INT8 ONNX", figures["real"], sizes["int8"]),
    ]
    for row in figures["baselines"]:
        size = f"{row['bytes'] / 1e6:.1f}" if row.get("bytes") else ""
        rows.append((row["name"], row.get("figures") or {}, size if "error" not in row else "failed"))
    for name, values, size in rows:
        table.add_row(name, *(shown(values[n], n) if n in values else "-" for n in names), size)
    console.print(table)
    table = Table(title=f"\nMilliseconds, {result['threads']} threads", title_justify="left")
    for column in ("batch", "length", "torch fp32", "ONNX fp32", "ONNX INT8", "speedup"):
        table.add_column(column, justify="right")
    for row in result["latency"]:
        table.add_row(
            str(row["batch"]), str(row["length"] or "-"), f"{row['torch_fp32_ms']:.1f}", f"{row['onnx_fp32_ms']:.1f}",
            f"{row['onnx_int8_ms']:.1f}", f"{row['speedup']:.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"{result['bytes']['int8'] / result['bytes']['fp32']:.1%} of the size; {result['weight_type']} weights; mean cosine to "
        f"the simulation {result['cosine_to_simulation']:.4f}, {result['equal_to_simulation']:.1%} of the values the same; "
        f"floating point ONNX differs from torch by {result['float_difference']:.1e}"
    )
    for row in figures["baselines"]:
        console.print(f"  {row['name']}: {row.get('error') or row['what']}")
    print(f"\nmodel, usage and figures in {out}")
