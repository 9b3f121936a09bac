"""What channel balancing alone does to a model in simulated INT8, by alpha; nothing is trained.

python -m experiments.retrofit.balance_alpha --texts reviews.txt --texts embedded --eval-texts wikitext2-test.txt [--keep]
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from experiments.retrofit.parts import measure
from quietformer.analysis.evaluate import reference_run
from quietformer.architectures.task import task_of
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.data.training_data import training_data
from quietformer.data.unseen_data import measuring_data
from quietformer.models.open_any import open_model
from quietformer.results.provenance import versions
from quietformer.transforms.balance import balance_
from quietformer.workflows.retrofit_recipe import KnownModel, retrofit_recipe

ALPHAS = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
COLUMNS = {
    "per_channel": "W8A8, per-channel weights", "per_tensor": "W8A8, per-tensor weights", "reach": "largest FFN output",
    "kurtosis": "kurtosis",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", action="append", default=[])
    parser.add_argument("--eval-texts", action="append", default=[])
    parser.add_argument("--sequences", type=int, default=300)
    keep_option_(parser)
    arguments = parser.parse_args()
    model: Any = open_model(arguments.model)
    task = task_of(model)
    options = RetrofitOptions(
        gate="none", sequences=arguments.sequences, texts=tuple(arguments.texts),
        eval_texts=tuple(map(Path, arguments.eval_texts)),
    )  # fmt: skip
    recipe = retrofit_recipe(KnownModel.of(arguments.model, model), options)
    rows_of_text = training_data(recipe, Path("."))
    data = measuring_data(recipe, rows_of_text, model, options.evaluation_sources(), options.sequences)
    reference = reference_run(model, data.evaluation, task)
    rows = []
    for alpha in ALPHAS:
        balanced = copy.deepcopy(model)
        if alpha:
            balance_(balanced, data.calibration(1), alpha=alpha)
        rows.append({"alpha": alpha} | measure(balanced, data, reference, 0))
        print(rows[-1], flush=True)
    if arguments.keep:
        keep(
            __file__,
            {"sequences": data.info.evaluation_sequences, "rows": rows, "versions": versions()},
        )


def table(result: dict[str, Any]) -> str:
    """The table of docs/retrofit.md."""
    lines: list[list[object]] = [["alpha", *COLUMNS.values()]]
    for row in result["rows"]:
        name = f"{row['alpha']:g}" if row["alpha"] else "not balanced"
        cells = [f"{row[key]:.4f}" if key.startswith("per_") else f"{row[key]:,.1f}" for key in COLUMNS]
        lines.append([name, *cells])
    return markdown(lines)


if __name__ == "__main__":
    main()
