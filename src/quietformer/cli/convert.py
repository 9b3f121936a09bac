"""`quietformer convert`: a model with another attention, as a new folder."""

from __future__ import annotations

from pathlib import Path

import typer

from quietformer.cli.output import working, write_json
from quietformer.errors import QuietformerError


def convert(
    model: str = typer.Argument(..., metavar="MODEL", help="A model folder or a hub id."),
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to write."),
    attention: str = typer.Option(
        "softmax", "--attention", metavar="SPEC", help="A normalizer, e.g. 'clipped_softmax(alpha=4)'."
    ),
    gate: str = typer.Option("", "--gate", metavar="SPEC", help="A gate, e.g. 'linear(pi_init=0.25)'."),
    patch_norm: bool = typer.Option(False, "--patch-norm", help="LayerNorm after the patch embedding (vision)."),
    trust_remote_code: bool = typer.Option(False, "--trust-remote-code", help="Run code that comes with the model."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write the figures as JSON."),
) -> None:
    """Put another attention into MODEL and save it to OUT."""
    if attention == "softmax" and not gate and not patch_norm:
        raise QuietformerError(
            "nothing to change: give --attention, --gate or --patch-norm ('quietformer variants' lists them)"
        )
    with working("starting"):
        import quietformer as qf
        from quietformer.specs import gates, normalizers

        spec = qf.AttentionSpec(normalizer=normalizers.read(attention), gate=gates.read(gate) if gate else None)
    from quietformer.sources import open_model

    with working(f"loading {model}"):
        opened = open_model(model, trust_remote_code=trust_remote_code)
    before = sum(parameter.numel() for parameter in opened.parameters())
    qf.apply_attention_(opened, spec)
    if patch_norm:
        qf.add_patch_norm_(opened)
    with working(f"writing {out}"):
        qf.save(opened, out)
    added = sum(parameter.numel() for parameter in opened.parameters()) - before
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    figures = {
        "model": model,
        "class": type(opened).__name__,
        "attention": spec.to_dict(),
        "patch_norm": patch_norm,
        "layers": sum(1 for _ in qf.attention_cores(opened)),
        "parameters_before": before,
        "parameters_added": added,
        "bytes": size,
    }
    print(f"{figures['class']}: {figures['layers']} attention layers now {spec.label}")
    print(f"{before:,} parameters, {added:,} added ({added / before:.3%}); {size / 2**20:.1f} MiB in {out}")
    print(f'load it with quietformer.load("{out}")')
    write_json(json_path, figures)
