"""What a healed model is worth on texts it was not tuned on: fp32, simulation and real INT8, against the original.

    python -m experiments.retrofit.minilm MODEL HEALED --texts TUNED_ON --eval-texts NAME=FILE [--keep]

Each evaluation text is measured by itself; calibration data is drawn from the text that was tuned on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.architectures.task import task_of
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.quantization import QuantSpec
from quietformer.data.training_data import training_data
from quietformer.data.unseen_data import measuring_data
from quietformer.models.open_any import open_model
from quietformer.quant.calibration import plan_quantization
from quietformer.results.provenance import versions
from quietformer.workflows.measure_before_after import Measuring, inspect_some, measure_side
from quietformer.workflows.retrofit_recipe import KnownModel, retrofit_recipe

COLUMNS = ("fp32", "W8A8 simulated, per-channel", "real INT8, per-channel", "real INT8, per-tensor")


def measured(model: Any, data: Any, reference: Any, name: str, seeds: int) -> dict[str, Any]:
    inspected = inspect_some(model, data, name)
    with tempfile.TemporaryDirectory() as scratch:
        by = Measuring(data, reference, seeds)
        side = measure_side(model, inspected, by, real=True, folder=Path(scratch) / "int8")
    layers = [
        {
            "layer": row.layer,
            "largest": row.largest,
            "infinity_norm": row.infinity_norm,
            "kurtosis": row.kurtosis,
        }
        for row in inspected.sites
        if row.site == "ffn_output"
    ]
    found = side.model_dump(mode="json", exclude={"inspect"})
    return {"float": found.pop("fp32"), **found, "layers": layers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("healed", type=Path)
    parser.add_argument("--texts", action="append", default=[])
    parser.add_argument("--eval-texts", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    keep_option_(parser)
    arguments = parser.parse_args()
    original, healed = open_model(arguments.model), open_model(str(arguments.healed))
    task = task_of(original)
    run = json.loads((arguments.healed / "figures.json").read_text())
    found: dict[str, Any] = {}
    for named in arguments.eval_texts:
        name, _, path = named.partition("=")
        options = RetrofitOptions(
            gate="none", texts=tuple(arguments.texts), eval_texts=(Path(path),), sequences=arguments.sequences
        )
        recipe = retrofit_recipe(KnownModel.of(arguments.model, original), options)
        rows = training_data(recipe, Path("."))
        data = measuring_data(recipe, rows, original, options.evaluation_sources(), options.sequences)
        reference = reference_run(original, data.evaluation, task)
        assert evaluate(original, data.evaluation, task, reference).value == reference.evaluation.value
        found[name] = {
            "sequences": data.info.evaluation_sequences,
            "before": measured(original, data, reference, arguments.model, arguments.seeds),
            "after": measured(healed, data, reference, "healed", arguments.seeds),
        }
        left = plan_quantization(healed, QuantSpec(per_channel=True), data.evaluation[0]).info().model_dump()["left"]
        print(name, json.dumps(found[name], default=str)[:600], flush=True)
    if arguments.keep:
        keep(
            __file__,
            {
                "tuned_on": [Path(text).name for text in arguments.texts],
                "recipe": Path(str(arguments.healed)).name,
                "steps": run["steps"],
                "texts": found,
                "left_in_floating_point": left,
                "versions": versions(),
            },
        )


def tables(result: dict[str, Any]) -> str:
    """The tables of docs/retrofit.md: quality, and outliers layer by layer."""
    found = result["texts"]
    lines: list[list[object]] = [["text", "measure", "", *COLUMNS]]
    for name, sides in found.items():
        for measure in sides["after"]["float"]:
            for when in ("before", "after"):
                side = sides[when]
                values = (
                    side["float"][measure], side["simulated"]["per_channel"][measure]["mean"],
                    side["real"]["per_channel"][measure], side["real"]["per_tensor"][measure],
                )  # fmt: skip
                lines.append([f"{name}, {sides['sequences']} passages", measure, when, *(f"{v:.4f}" for v in values)])
    rows: list[list[object]] = [["FFN outputs", "layer", *(row["layer"] for row in layers(found, "before"))]]
    for label, key in (("largest magnitude", "largest"), ("kurtosis", "kurtosis")):
        for when in ("before", "after"):
            rows.append([label, when, *(f"{row[key]:,.1f}" for row in layers(found, when))])
    return f"{markdown(lines)}\n{markdown(rows)}"


def layers(found: dict[str, Any], when: str) -> list[dict[str, Any]]:
    """The worst of all texts, layer by layer."""
    each = [sides[when]["layers"] for sides in found.values()]
    return [
        {"layer": rows[0]["layer"], **{key: max(row[key] for row in rows) for key in ("largest", "kurtosis")}}
        for rows in zip(*each, strict=True)
    ]


def short(result: dict[str, Any]) -> str:
    """The five rows of the README, all of real INT8."""
    found = result["texts"]
    lines: list[list[object]] = [["", "before", "after"]]
    for name, sides in found.items():
        for label, metric in (("cosine to the original", "cosine"), ("same nearest neighbour", "neighbour_agreement")):
            values = [sides[when]["real"]["per_channel"][metric] for when in ("before", "after")]
            lines.append([f"{name}: {label}", *(f"{value:.4f}" for value in values)])
    largest = [max(row["largest"] for row in layers(found, when)) for when in ("before", "after")]
    lines.append(["largest FFN output", *(f"{value:,.1f}" for value in largest)])
    return markdown(lines)


if __name__ == "__main__":
    main()
