"""The tables of docs/train.md, from finished runs and the benchmark of training steps.

python -m tools.train_tables RUN...      (writes docs/train.md and results/train.json)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tools.tables import between

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("recipe", "attention", "seed", "steps", "data", "validation", "bigram_perplexity", "majority_accuracy", "outliers",
        "parameters", "steps_per_second", "processes", "versions", "log")  # fmt: skip


def run_row(figures: dict[str, Any]) -> str:
    found, outliers = figures["validation"], figures["outliers"]
    if "perplexity" in found:
        quality = f"perplexity {found['perplexity']:.2f}"
        beside = f"bigram {figures['bigram_perplexity']:.2f}"
    else:
        quality = f"accuracy {found['accuracy']:.2%}"
        beside = f"largest class {figures['majority_accuracy']:.2%}"
    minutes = figures["steps"] / figures["steps_per_second"] / 60
    size = f"{figures['parameters'] / 1e6:.2f}M"
    return (
        f"| {figures['recipe']} | {figures['attention']} | {size} | {figures['steps']:,} | {quality} | {beside} | "
        f"{outliers['infinity_norm']:.1f} | {outliers['kurtosis']:.1f} | {minutes:.1f} min |\n"
    )


def main() -> None:
    runs = [json.loads((Path(name) / "figures.json").read_text()) for name in sys.argv[1:]]
    runs_table = (
        "| recipe | attention | parameters | steps | validation | beside | infinity norm | kurtosis | training |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n" + "".join(map(run_row, runs))
    )
    steps = json.loads((ROOT / "results" / "training_steps.json").read_text())
    steps_table = "| throughput | ratio |\n| --- | --- |\n" + "".join(
        f"| {name} | {ratio:.3f} |\n" for name, ratio in steps["throughput"].items()
    )
    page = ROOT / "docs" / "train.md"
    page.write_text(between(between(page.read_text(), "runs", runs_table), "training", steps_table))
    kept = [{name: figures[name] for name in KEPT if name in figures} for figures in runs]
    for figures in kept:
        # Sources are named by the files they lie in, wherever that was.
        figures["data"]["sources"] = [Path(name).name for name in figures["data"]["sources"]]
    commands = [
        " ".join(Path(word).name if Path(word).is_absolute() else word for word in run["command"]) for run in runs
    ]
    content = {"command": "python -m tools.train_tables RUN...", "runs": commands, "figures": kept}
    (ROOT / "results" / "train.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
