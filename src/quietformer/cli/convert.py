"""`quietformer convert`: a model with another attention, as a new folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from quietformer.cli.progress import working
from quietformer.errors import QuietformerError
from quietformer.files import check_place, write_json


def convert(
    model: str = typer.Argument(..., metavar="MODEL", help="A model folder, a .gguf file or a hub id."),
    out: Path = typer.Argument(..., metavar="OUT", help="The folder to write."),
    attention: str = typer.Option(
        "", "--attention", metavar="SPEC", help="A normalizer, e.g. 'clipped_softmax(alpha=4)'."
    ),
    gate: str = typer.Option("", "--gate", metavar="SPEC", help="A gate, e.g. 'linear(pi_init=0.25)', or 'none'."),
    patch_norm: bool = typer.Option(False, "--patch-norm", help="LayerNorm after the patch embedding (vision)."),
    trust_remote_code: bool = typer.Option(False, "--trust-remote-code", help="Run code that comes with the model."),
    seed: int = typer.Option(0, "--seed", help="Draws the weights of new gates."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a model that is in OUT already."),
    json_path: Path | None = typer.Option(None, "--json", metavar="PATH", help="Also write the figures as JSON."),
) -> None:
    """Put another attention into MODEL and save it to OUT; what is not named stays as it is.

    A pretrained model changes with its attention: gates that start open, 'linear(scale=2, weight_std=0.01)', leave it nearly
    as it was; anything else wants fine-tuning.
    """
    if not attention and not gate and not patch_norm:
        raise QuietformerError(
            "nothing to change: give --attention, --gate or --patch-norm ('quietformer variants' lists them)"
        )
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise QuietformerError(f"{out} is there already; choose another place or pass --overwrite")
    if out.is_dir() and Path(model).is_dir() and out.samefile(model):
        raise QuietformerError(f"{out} is MODEL itself; choose another place")
    check_place(json_path)
    check_place(out.absolute() / "config.json" if out.is_dir() else out.absolute())
    with working("starting"):
        import torch

        from quietformer.architectures.patch_norm import add_patch_norm_
        from quietformer.attention.inject import apply_attention_, attention_cores
        from quietformer.config.attention import AttentionSpec, gates, normalizers
        from quietformer.config.recorded_changes import changes_of
        from quietformer.data.tokenizers import tokenizer_of
        from quietformer.models.open import gguf_file, open_model
        from quietformer.models.save import save

        named: dict[str, Any] = {"normalizer": normalizers.read(attention)} if attention else {}
        if gate:
            named["gate"] = None if gate == "none" else gates.read(gate)
    with working(f"loading {model}"):
        opened = open_model(model, trust_remote_code=trust_remote_code)
    spec = (changes_of(opened).attention or AttentionSpec()).model_copy(update=named)
    torch.manual_seed(seed)
    before = sum(parameter.numel() for parameter in opened.parameters())
    if named:
        apply_attention_(opened, spec)
    if patch_norm:
        add_patch_norm_(opened)
    with working(f"writing {out}"):
        # The files of a folder are copied; those of a GGUF file have to be made.
        save(opened, out, processor=tokenizer_of(model) if gguf_file(model) else None)
    added = sum(parameter.numel() for parameter in opened.parameters()) - before
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    figures = {
        "model": model,
        "class": type(opened).__name__,
        "attention": spec.to_dict(),
        "patch_norm": patch_norm,
        "seed": seed,
        "layers": sum(1 for _ in attention_cores(opened)),
        "parameters_before": before,
        "parameters_added": added,
        "bytes": size,
    }
    print(f"{figures['class']}: {figures['layers']} attention layers now {spec.label}")
    change = f"{abs(added):,} {'added' if added >= 0 else 'removed'} ({abs(added) / before:.3%})"
    print(f"{before:,} parameters, {change}; {size / 2**20:.1f} MiB in {out}")
    print(f'load it with quietformer.load("{out}")')
    write_json(json_path, figures)
