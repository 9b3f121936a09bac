"""What rows of a causal model's attention do, by how many keys they see: who gives nothing, who gives it to the first token.

    python -m experiments.studies.causal_rows DIR [--keep]

DIR is a folder that `quietformer sweep causal-clipping` has left, with its models. The table goes into docs/science.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean as mean
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.analysis.recorder import AttentionRecord, record, with_cores
from quietformer.config.recipe_files import read_recipe
from quietformer.data.unseen_data import validation_data
from quietformer.models.open_any import open_model
from quietformer.results.provenance import versions
from quietformer.results.study import StudyReport
from quietformer.study.run import REPORT
from quietformer.study.workers import RUNS
from quietformer.training.run_folder import RECIPE

GROUPS = ((2, 4), (5, 8), (9, 16), (17, 32))
"""Rows by the keys they see; the first sees itself alone and has no choice."""
SEQUENCES = 128


def name_of(group: tuple[int, int]) -> str:
    return f"{group[0]} to {group[1]}"


def measured(folder: Path) -> dict[str, Any]:
    """Means over all layers, heads and sequences of one run; values of the first token against those of the others."""
    model = open_model(str(folder)).eval()
    data = validation_data(read_recipe(str(folder / RECIPE)), folder, model, SEQUENCES)
    dead, first = defaultdict(list), defaultdict(list)
    values: list[float] = []
    reach: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def on_attention(layer: int, seen: AttentionRecord) -> None:
        for low, high in GROUPS:
            rows_BHQK = seen.probabilities_BHQK[:, :, low - 1 : high]
            dead[low, high].append(float((rows_BHQK.amax(-1) == 0).float().mean()))
            first[low, high].append(float(rows_BHQK[..., 0].mean()))
        norms_BHK = seen.value_BHKD.norm(dim=-1)
        values.append(float(norms_BHK[..., 0].mean() / norms_BHK[..., 1:].mean()))

    def on_site(site: str, layer: int, x: Tensor) -> None:
        if site == "ffn_output":
            largest_BT = x.reshape(len(batch["input_ids"]), -1, x.shape[-1]).abs().amax(-1)
            reach[layer].append((float(largest_BT[:, 0].mean()), float(largest_BT[:, 1:].amax(-1).mean())))

    with torch.no_grad(), with_cores(model), record(model, on_site, on_attention):
        for batch in data.evaluation:
            model(**{key: value for key, value in batch.items() if key != "labels"})
    return {
        "dead": {name_of(group): mean(dead[group]) for group in GROUPS},
        "on_the_first": {name_of(group): mean(first[group]) for group in GROUPS},
        "values_of_the_first": mean(values),
        "largest_of_the_first": max(mean(one for one, _ in layer) for layer in reach.values()),
        "largest_of_others": max(mean(other for _, other in layer) for layer in reach.values()),
    }


def table(result: dict[str, Any]) -> str:
    """Means over seeds; in the cells of rows the share that is dead, then the weight on the first token, in per cent."""
    runs = result["runs"]
    heads = (f"rows of {name_of(group)} keys" for group in GROUPS)
    lines = [["", *heads, "values of the first token", "its largest FFN output", "that of others"]]
    for variant in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == variant]
        cells = [
            " / ".join(f"{100 * mean(run[key][name_of(group)] for run in own):.0f}" for key in ("dead", "on_the_first"))
            for group in GROUPS
        ]
        value, reach, other = (
            mean(run[key] for run in own)
            for key in ("values_of_the_first", "largest_of_the_first", "largest_of_others")
        )
        lines.append([variant, *cells, f"{value:.2f}", f"{reach:.0f}", f"{other:.0f}"])
    return markdown(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, metavar="DIR")
    keep_option_(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials = StudyReport.read(arguments.study / REPORT).trials
    runs = [
        {"variant": trial.at["variant"], "seed": trial.seed, **measured(arguments.study / RUNS / trial.name)}
        for trial in track(trials, "runs")
    ]
    result = {"sequences": SEQUENCES, "runs": runs, "versions": versions()}
    print(table(result))
    if arguments.keep:
        keep(__file__, result)


if __name__ == "__main__":
    main()
