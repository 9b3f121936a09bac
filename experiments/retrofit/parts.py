"""What each part of a retrofit contributes: the same short run of MiniLM with every kind of attention, with and without the
penalty, over several seeds.

    python -m experiments.retrofit.parts RUNS --texts reviews.txt --eval-texts wikitext.txt --eval-texts sentences.txt

Always kept in parts.json, since it takes hours. A run that is finished in RUNS is not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.documents import markdown
from experiments.provenance import finite, keep, write_json
from quietformer.analysis.evaluate import evaluate, reference_run
from quietformer.analysis.inspection import inspect_model
from quietformer.architectures.task import task_of
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.quantization import QuantSpec
from quietformer.data.training_data import training_data
from quietformer.data.unseen_data import measuring_data
from quietformer.models.open_any import open_model
from quietformer.quant.calibration import calibrate_, quantize_
from quietformer.results.inspect import InspectReport
from quietformer.results.provenance import versions
from quietformer.results.quality import Spread
from quietformer.training.run import train
from quietformer.workflows.measure_before_after import INSPECTED, spread_over
from quietformer.workflows.retrofit_recipe import KnownModel, retrofit_recipe

VARIANTS: dict[str, dict[str, Any]] = {
    "no change at all": {},
    "penalty alone": {"gate": "none"},
    "linear gate": {"gate": "linear"},
    "MLP gate": {"gate": "mlp"},
    "all-heads gate": {"gate": "all_heads"},
    "clipped softmax": {"gate": "none", "normalizer": "clipped_softmax(alpha=4,warmup_steps=100)"},
    "linear gate, no penalty": {"gate": "linear", "penalty": 0.0},
}
MEASURES = ("float", "reach", "kurtosis", "per_tensor", "per_channel")


def options_for(variant: dict[str, Any], seed: int, arguments: argparse.Namespace) -> RetrofitOptions:
    return RetrofitOptions(
        attention=variant.get("normalizer", ""), gate=variant.get("gate", "none"),
        texts=tuple(arguments.texts), eval_texts=tuple(map(Path, arguments.eval_texts)),
        steps=arguments.steps, batch_size=arguments.batch_size, learning_rate=3e-4, penalty=variant.get("penalty"), ranges=0.0,
        balance=0.0, qat=0.0, seed=seed,
        sequences=arguments.sequences, set=("training.evaluate_every=0", "training.save_every=0"),
    )  # fmt: skip


def outliers(model: Any, data: Any) -> dict[str, float]:
    """The largest FFN output and kurtosis of any layer, in texts of all lengths."""
    reach, kurtosis = inspected(model, data).extremes()
    return {"reach": reach, "kurtosis": kurtosis}


def inspected(model: Any, data: Any) -> InspectReport:
    return inspect_model(model, spread_over(data.evaluation, INSPECTED))


def measure(model: Any, data: Any, reference: Any, seed: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"float": evaluate(model, data.evaluation, reference.task, reference).value}
    figures |= outliers(model, data)
    for name, per_channel in (("per_tensor", False), ("per_channel", True)):
        quantized = copy.deepcopy(model)
        quantize_(quantized, QuantSpec(per_channel=per_channel), data.evaluation[0])
        calibrate_(quantized, data.calibration(seed))
        figures[name] = evaluate(quantized, data.evaluation, reference.task, reference).value
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", action="append", default=[])
    parser.add_argument("--eval-texts", action="append", default=[])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--outliers", action="store_true", help="look at the outliers of finished runs again")
    arguments = parser.parse_args()
    model = open_model(arguments.model)
    task = task_of(model)
    plain = options_for({}, 0, arguments)
    rows: dict[str, list[dict[str, float | None]]] = {name: [] for name in VARIANTS}
    known = KnownModel.of(arguments.model, model)
    draft = retrofit_recipe(known, plain)
    data = measuring_data(
        draft, training_data(draft, Path(".")), model, plain.evaluation_sources(), arguments.sequences
    )
    reference = reference_run(model, data.evaluation, task)
    known = replace(known, inspected=inspected(model, data))
    for seed in range(arguments.seeds):
        for name, variant in VARIANTS.items():
            place = arguments.runs / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
            kept = place / "ablation.json"
            if not kept.is_file():
                if variant:
                    train(retrofit_recipe(known, options_for(variant, seed, arguments)), place)
                trained = open_model(str(place)) if variant else model
                place.mkdir(parents=True, exist_ok=True)
                write_json(kept, finite(measure(trained, data, reference, seed)))
            elif arguments.outliers:
                trained = open_model(str(place)) if variant else model
                write_json(kept, finite(json.loads(kept.read_text()) | outliers(trained, data)))
            rows[name].append(json.loads(kept.read_text()))
            print(f"{name}, seed {seed}: {rows[name][-1]}", flush=True)
    keep(
        __file__,
        {
            "steps": arguments.steps,
            "batch_size": arguments.batch_size,
            "seeds": arguments.seeds,
            "evaluation_sequences": data.info.evaluation_sequences,
            "variants": {
                name: {key: Spread.of([run[key] for run in runs]).model_dump() for key in MEASURES}
                for name, runs in rows.items()
            },
            "runs": rows,
            "versions": versions(),
        },
    )


def table(result: dict[str, Any]) -> str:
    """The table of docs/retrofit.md."""
    head = [
        "variant", "seeds", "fp32", "largest FFN output", "kurtosis", "W8A8, per-tensor weights",
        "W8A8, per-channel weights",
    ]  # fmt: skip
    lines = [
        [name, len(result["runs"][name]), *(cell(key, found[key]) for key in MEASURES)]
        for name, found in result["variants"].items()
    ]
    return markdown([head, *lines])


def cell(key: str, value: dict[str, float | None]) -> str:
    places = {"reach": 1, "kurtosis": 0}.get(key, 4)
    if value["mean"] is None:
        return "a run gave no number"
    deviation = f" ± {value['std']:,.{places}f}" if value["std"] else ""
    return f"{value['mean']:,.{places}f}{deviation}"


if __name__ == "__main__":
    main()
