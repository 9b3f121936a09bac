"""What balancing residual sums alone does to a model in simulated INT8, by alpha; nothing is trained.

    python -m tools.balance_figures --texts reviews.txt --texts embedded --eval-texts wikitext2-test.txt

Writes results/balance.json and the table of docs/retrofit.md.
"""

from __future__ import annotations

import argparse
import copy
import shlex
import sys
from pathlib import Path
from typing import Any

from tools.retrofit_ablation import measure
from tools.tables import markdown, write_between

from quietformer.analysis.evaluate import reference_run
from quietformer.architectures.task import task_of
from quietformer.config.recipe import Source
from quietformer.data.measuring_data import measuring_data
from quietformer.files import finite, write_json
from quietformer.models.open import open_model
from quietformer.results.provenance import versions
from quietformer.transforms.balance import balance_
from quietformer.workflows.retrofit import RetrofitOptions, make_recipe

ALPHAS = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
JSON, DOCS = Path("results/balance.json"), Path("docs/retrofit.md")
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
    arguments = parser.parse_args()
    model: Any = open_model(arguments.model)
    task = task_of(model)
    options = RetrofitOptions(
        gate="none", sequences=arguments.sequences, evaluation=[Source(path=text) for text in arguments.eval_texts],
        sources=[Source.read(text) if text == "embedded" else Source(path=text) for text in arguments.texts],
    )  # fmt: skip
    data = measuring_data(
        make_recipe(arguments.model, model, task, {"sites": []}, options), Path("."), model, task, options
    )
    reference = reference_run(model, data.evaluation, task)
    rows = []
    for alpha in ALPHAS:
        balanced = copy.deepcopy(model)
        if alpha:
            balance_(balanced, data.calibration(1), alpha=alpha)
        rows.append({"alpha": alpha} | measure(balanced, data, reference, 0))
        print(rows[-1], flush=True)
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    write_json(
        JSON,
        finite({
            "command": shlex.join(["python", "-m", "tools.balance_figures", *words]),
            "sequences": data.described["evaluation_sequences"],
            "rows": rows,
            "versions": versions(),
        }),
    )  # fmt: skip
    table = [["alpha", *COLUMNS.values()]]
    for row in rows:
        name = f"{row['alpha']:g}" if row["alpha"] else "not balanced"
        cells = [f"{row[key]:.4f}" if key.startswith("per_") else f"{row[key]:,.1f}" for key in COLUMNS]
        table.append([name, *cells])
    write_between(DOCS, "balance", markdown(table))


if __name__ == "__main__":
    main()
