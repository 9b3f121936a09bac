"""What a healed model is worth on texts it was not tuned on: floating point, simulation and real INT8, against the original.

    python -m tools.retrofit_figures MODEL HEALED --texts TUNED_ON --eval-texts NAME=FILE --json results/retrofit_minilm.json

Each evaluation text is measured by itself; calibration data is drawn from the text that was tuned on. Writes the tables of
docs/retrofit.md and the README.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from quietformer.workflows.quality import look, measure_side
from tools.tables import write_between

from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.architectures.task import task_of
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe import Source
from quietformer.data.measuring_data import measuring_data
from quietformer.files import finite, write_json
from quietformer.models.open import open_model
from quietformer.quant.calibration import plan_quantization
from quietformer.results.provenance import versions
from quietformer.workflows.retrofit import RetrofitOptions, make_recipe

COLUMNS = ("floating point", "W8A8 simulated, per-channel", "real INT8, per-channel", "real INT8, per-tensor")


def measured(model: Any, data: Any, reference: Any, name: str, seeds: int) -> dict[str, Any]:
    def tell(what: str, done: int, total: int) -> None:
        pass

    with tempfile.TemporaryDirectory() as scratch:
        side = measure_side(
            model, data, reference, look(model, data, name, tell), seeds=seeds, real=True, folder=Path(scratch) / "int8",
            tell=tell,
        )  # fmt: skip
    layers = [
        {
            "layer": row["layer"],
            "largest": max(-row["min"], row["max"]),
            "infinity_norm": row["infinity_norm"],
            "kurtosis": row["kurtosis"],
        }
        for row in side.pop("inspect")["sites"]
        if row["site"] == "ffn_output"
    ]
    return side | {"layers": layers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("healed", type=Path)
    parser.add_argument("--texts", action="append", default=[])
    parser.add_argument("--eval-texts", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    original, healed = open_model(arguments.model), open_model(str(arguments.healed))
    task = task_of(original)
    run = json.loads((arguments.healed / "figures.json").read_text())
    found: dict[str, Any] = {}
    for named in arguments.eval_texts:
        name, _, path = named.partition("=")
        options = RetrofitOptions(
            gate="none",
            sources=[Source.read(text) if text == "embedded" else Source(path=text) for text in arguments.texts],
            evaluation=[Source(path=path)],
            sequences=arguments.sequences,
        )
        recipe = make_recipe(arguments.model, original, task, {"sites": []}, options)
        data = measuring_data(recipe, Path("."), original, task, options)
        reference = reference_run(original, data.evaluation, task)
        assert evaluate(original, data.evaluation, task, reference).value == reference.evaluation.value
        found[name] = {
            "sequences": data.described["evaluation_sequences"],
            "before": measured(original, data, reference, arguments.model, arguments.seeds),
            "after": measured(healed, data, reference, "healed", arguments.seeds),
        }
        left = plan_quantization(healed, QuantSpec(per_channel=True), data.evaluation[0]).info().model_dump()["left"]
        print(name, json.dumps(found[name], default=str)[:600], flush=True)
    write_json(
        arguments.json,
        finite({
            "command": "python -m tools.retrofit_figures MODEL HEALED --texts ... --eval-texts NAME=FILE ...",
            "tuned_on": [Path(text).name for text in arguments.texts],
            "recipe": Path(str(arguments.healed)).name,
            "steps": run["steps"],
            "texts": found,
            "left_in_floating_point": left,
            "versions": versions(),
        }),
    )  # fmt: skip
    write_between(Path("docs/retrofit.md"), "minilm", tables(found))
    write_between(Path("README.md"), "retrofit", short(found))


def tables(found: dict[str, Any]) -> str:
    lines = ["| text | measure | | " + " | ".join(COLUMNS) + " |", "| --- | --- | --- |" + " --- |" * len(COLUMNS)]
    for name, sides in found.items():
        for measure in sides["after"]["float"]:
            for when in ("before", "after"):
                side = sides[when]
                values = (
                    side["float"][measure], side["simulated"]["per_channel"][measure]["mean"],
                    side["real"]["per_channel"][measure], side["real"]["per_tensor"][measure],
                )  # fmt: skip
                cells = " | ".join(f"{value:.4f}" for value in values)
                lines.append(f"| {name}, {sides['sequences']} passages | {measure} | {when} | {cells} |")
    lines += ["", "| FFN outputs | layer | " + " | ".join(str(row["layer"]) for row in layers(found, "before")) + " |"]
    lines += ["| --- | --- |" + " --- |" * len(layers(found, "before"))]
    for label, key in (("largest magnitude", "largest"), ("kurtosis", "kurtosis")):
        for when in ("before", "after"):
            values = " | ".join(f"{row[key]:,.1f}" for row in layers(found, when))
            lines.append(f"| {label} | {when} | {values} |")
    return "\n".join(lines)


def layers(found: dict[str, Any], when: str) -> list[dict[str, Any]]:
    """The worst of all texts, layer by layer."""
    each = [sides[when]["layers"] for sides in found.values()]
    return [
        {"layer": rows[0]["layer"], **{key: max(row[key] for row in rows) for key in ("largest", "kurtosis")}}
        for rows in zip(*each, strict=True)
    ]


def short(found: dict[str, Any]) -> str:
    lines = ["| | before | after |", "| --- | --- | --- |"]
    for name, sides in found.items():
        for label, pick in (
            ("real INT8, cosine to the original", lambda side: side["real"]["per_channel"]["cosine"]),
            ("real INT8, same nearest neighbour", lambda side: side["real"]["per_channel"]["neighbour_agreement"]),
            ("floating point, cosine to the original", lambda side: side["float"]["cosine"]),
        ):
            lines.append(f"| {name}: {label} | {pick(sides['before']):.4f} | {pick(sides['after']):.4f} |")
    for label, key in (("largest FFN output", "largest"), ("largest kurtosis", "kurtosis")):
        values = [max(row[key] for row in layers(found, when)) for when in ("before", "after")]
        lines.append(f"| {label} | {values[0]:,.1f} | {values[1]:,.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
