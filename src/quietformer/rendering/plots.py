"""Plots of an inspection for a paper or a document, PNG and SVG."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np

from quietformer.errors import QuietformerError
from quietformer.files import write_bytes
from quietformer.results.inspect import InspectReport, PackedMatrix, PatchPicture
from quietformer.results.labels import label

WIDTH = 7.0
"""Inches: the text width of a page."""


def draw_plots(report: InspectReport, folder: Path) -> list[Path]:
    """Layers, outliers by dimension and position, the idlest head's attention, and for images the patches."""
    use_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [save_figure(_layers(report), folder / "layers")]
    if report.outliers:
        drawn.append(save_figure(_outliers(report), folder / "outliers"))
    if report.pictures.attention:
        drawn.append(save_figure(_attention(report), folder / "attention"))
    if report.pictures.patches:
        drawn.append(save_figure(_patches(report, report.pictures.patches), folder / "patches"))
    return [path for pair in drawn for path in pair]


def use_matplotlib() -> None:
    """Without a screen; if it is not installed, the error says how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise QuietformerError("plots need matplotlib; pip install quietformer[figures]") from None
    matplotlib.use("agg")


def save_figure(figure: Any, stem: Path) -> list[Path]:
    import matplotlib.pyplot as plt

    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        kind = path.suffix.removeprefix(".")
        drawn = io.BytesIO()
        figure.savefig(
            drawn, format=kind, dpi=200, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None
        )
        write_bytes(path, drawn.getvalue())
    plt.close(figure)
    return paths


def subplots(rows: int, columns: int, height: float, **options: Any) -> Any:
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "quiet"})
    return plt.subplots(rows, columns, figsize=(WIDTH, height), squeeze=False, layout="constrained", **options)


def plain(text: Any) -> str:
    """As it is: matplotlib would read text between dollar signs as mathematics."""
    return str(text).replace("$", r"\$")


def _layers(report: InspectReport) -> Any:
    figure, axes = subplots(1, 2, 2.4)
    for site in ("ffn_output", "attention_output", "ffn_residual"):
        rows = sorted((row for row in report.sites if row.site == site), key=lambda row: row.layer)
        layers = [row.layer for row in rows]
        axes[0, 0].plot(layers, [row.infinity_norm for row in rows], "o-", ms=3, label=label(site))
        axes[0, 1].semilogy(layers, [row.kurtosis or np.nan for row in rows], "o-", ms=3, label=label(site))
    axes[0, 0].set(xlabel="layer", ylabel="infinity norm")
    axes[0, 1].set(xlabel="layer", ylabel="kurtosis")
    axes[0, 0].legend(frameon=False)
    return figure


def _outliers(report: InspectReport) -> Any:
    """The paper's figure 1: outliers by hidden dimension and by position."""
    keys = [(place.site, place.layer) for place in report.verdict.ranked]
    row = min(
        report.outliers, key=lambda row: keys.index((row.site, row.layer)) if (row.site, row.layer) in keys else 99
    )
    figure, axes = subplots(1, 2, 2.2)
    axes[0, 0].bar([found.dimension for found in row.dimensions], [found.count for found in row.dimensions], width=2)
    axes[0, 0].set(xlabel="hidden dimension", ylabel="outliers", xlim=(0, report.model.width))
    axes[0, 1].bar(range(len(row.positions)), row.positions, width=1)
    axes[0, 1].set(xlabel="position")
    figure.suptitle(f"{label(row.site)}, layer {row.layer}", fontsize=9)
    return figure


def _attention(report: InspectReport) -> Any:
    """The paper's figures 2 and 8: P, V and PV of one head, and its gate if it has one."""
    kept = report.pictures.attention
    scores = [(score, row.layer, head) for row in report.heads for head, score in enumerate(row.no_op)]
    shown = {entry.layer for entry in kept}
    _, layer, head = max(found for found in scores if found[1] in shown)
    entry = next(entry for entry in kept if entry.layer == layer)
    one, sequence = entry.heads[head], report.pictures.sequences[entry.sequence]
    panels = ([] if one.pi is None else ["pi"]) + ["P", "V", "PV"]
    figure, axes = subplots(1, len(panels), 2.6)
    for axis, name in zip(axes[0], panels, strict=True):
        if name == "pi":
            axis.imshow(np.array(one.pi)[:, None], aspect="auto", cmap="Blues", vmin=0)
            axis.set_xticks([])
        else:
            matrix = unpack(getattr(one, name))
            limit = np.abs(matrix).max() if name == "P" else np.abs(unpack(one.V)).max()
            axis.imshow(
                matrix,
                aspect="auto",
                cmap="Blues" if name == "P" else "RdBu",
                vmin=0 if name == "P" else -limit,
                vmax=limit,
            )
        axis.set_title({"pi": "gate", "P": "probabilities P", "V": "values V", "PV": "product PV"}[name], fontsize=8)
    if sequence.tokens is not None and len(sequence.tokens) <= 40:
        axes[0, 0].set_yticks(range(len(sequence.tokens)), list(map(plain, sequence.tokens)), fontsize=4)
    figure.suptitle(f"layer {layer}, head {head}: {report.model.attention}", fontsize=9)
    return figure


def _patches(report: InspectReport, rows: list[PatchPicture]) -> Any:
    """The paper's ViT summary: an image, outliers and attention over patches, values of outlier and other patches."""
    row = max(rows, key=lambda row: sum(row.outliers))
    side, extra = row.side, row.extra_tokens
    figure, axes = subplots(1, 4, 2.0)
    image = report.pictures.sequences[0].image
    if image is not None:
        axes[0, 0].imshow(unpack(image), cmap="gray")
    axes[0, 0].set_title("an image", fontsize=8)
    for axis, name, shares in ((axes[0, 1], "outliers", row.outliers), (axes[0, 2], "attention", row.attention)):
        axis.imshow(np.array(shares[extra : extra + side * side]).reshape(side, side), cmap="Blues")
        axis.set_title(f"{name} by patch", fontsize=8)
    for axis in axes[0, :3]:
        axis.set(xticks=[], yticks=[])
    values = [row.value_norm_outlier_patches or 0.0, row.value_norm_other_patches or 0.0]
    axes[0, 3].bar(["outlier\npatches", "other\npatches"], values)
    axes[0, 3].set_title("value norm", fontsize=8)
    figure.suptitle(f"layer {row.layer}, {report.data.sequences} images", fontsize=9)
    return figure


def unpack(packed: PackedMatrix) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The matrix of a stored picture."""
    data = np.frombuffer(base64.b64decode(packed.data), dtype=np.uint8).astype(np.float64)
    matrix: np.ndarray[Any, np.dtype[np.float64]] = data.reshape(packed.rows, packed.columns) - packed.zero
    return matrix * packed.step
