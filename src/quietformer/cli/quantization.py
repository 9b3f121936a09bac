"""What `quantize` and `export` share: from options to a spec, to data, and to a quantized model with its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietformer.cli.progress import Steps, working
from quietformer.errors import QuietformerError
from quietformer.results.provenance import command_line, versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from quietformer.analysis.evaluate import Reference
    from quietformer.config.quantization import QuantSpec
    from quietformer.data.calibration_data import CalibrationData
    from quietformer.quant.placement import QuantPlan

BitsOption = Annotated[str, typer.Option("--bits", metavar="WxAy", help="Bits of weights and activations, 2 to 16.")]

WeightsOption = Annotated[
    str, typer.Option("--weights", metavar="ESTIMATOR", help="Range of weights: minmax, mse, percentile.")
]

ActsOption = Annotated[
    str,
    typer.Option(
        "--acts", metavar="ESTIMATOR",
        help="Range of activations: running-minmax, minmax, current-minmax, 'percentile(q=99.999)', mse.",
    ),
]  # fmt: skip

PerChannelOption = Annotated[bool, typer.Option("--per-channel", help="A scale for each output channel of a weight.")]

KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep", metavar="PATTERN[=BITS]",
        help="Leave sites in floating point, or give them BITS; e.g. '*.ffn_output=16'.",
    ),
]  # fmt: skip

BalanceOption = Annotated[
    bool,
    typer.Option(
        "--balance",
        help="Bring the features of a post-norm model's residual sums to a like size first; it stays the same model.",
    ),
]

GateOption = Annotated[bool, typer.Option("--gate", help="Also quantize what gates give.")]

HeadOption = Annotated[bool, typer.Option("--head", help="Also quantize the head.")]

TextsOption = Annotated[Path | None, typer.Option("--texts", metavar="FILE", help="Text, one paragraph a line.")]

EvalTextsOption = Annotated[
    Path | None, typer.Option("--eval-texts", metavar="FILE", help="Other text to evaluate on.")
]

DatasetOption = Annotated[
    str, typer.Option("--dataset", metavar="NAME", help="Texts of a dataset (hub name or folder).")
]

ImagesOption = Annotated[
    Path | None, typer.Option("--images", metavar="DIR", help="Images; class folders give labels.")
]

SequencesOption = Annotated[int, typer.Option("--sequences", min=2, help="Sequences or images to evaluate on.")]

CalibrationOption = Annotated[int, typer.Option("--calibration", min=1, help="Batches to calibrate on.")]

BatchSizeOption = Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time.")]

LengthOption = Annotated[
    int | None, typer.Option("--length", min=3, help="Tokens of a sequence; 128, or as many as fit.")
]

TrustOption = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]


@dataclass
class Options:
    """The options both commands take."""

    bits: str
    weights: str
    acts: str
    per_channel: bool
    keep: list[str]
    gate: bool
    head: bool
    texts: Path | None
    eval_texts: Path | None
    dataset: str
    images: Path | None
    sequences: int
    calibration: int
    batch_size: int
    length: int | None
    balance: bool

    def spec(self) -> QuantSpec:
        from quietformer.config.quantization import QuantRule, QuantSpec, estimators, parse_bits

        weight_bits, activation_bits = parse_bits(self.bits)
        return QuantSpec(
            weight_bits=weight_bits,
            activation_bits=activation_bits,
            weights=estimators.read(self.weights.replace("-", "_")),
            activations=estimators.read(self.acts.replace("-", "_")),
            per_channel=self.per_channel,
            head=self.head,
            gate=self.gate,
            rules=tuple(QuantRule.parse(text) for text in self.keep),
        )

    def check(self) -> None:
        if (self.texts is not None) + bool(self.dataset) + (self.images is not None) > 1:
            raise QuietformerError("give one of --texts, --dataset and --images")
        if self.eval_texts is not None and self.images is not None:
            raise QuietformerError("--eval-texts goes with text, not with --images")

    def data(self, model: PreTrainedModel, source: str, task: str) -> CalibrationData:
        from quietformer.data.calibration_data import calibration_data

        return calibration_data(
            model, source, task, texts=self.texts, eval_texts=self.eval_texts, dataset=self.dataset, images=self.images,
            batches=self.calibration, batch_size=self.batch_size, evaluation=self.sequences, length=self.length,
        )  # fmt: skip


@dataclass
class Quantized:
    """A quantized model, what it was compared with, and the figures so far."""

    model: PreTrainedModel
    plan: QuantPlan
    data: CalibrationData
    reference: Reference
    figures: dict[str, Any]


def open_source(source: str, options: Options, trust_remote_code: bool) -> tuple[PreTrainedModel, CalibrationData, str]:
    """The model, its data and its task."""
    with working(f"loading {source}"):
        from quietformer.analysis.inspection import check_finite
        from quietformer.architectures.task import task_of
        from quietformer.models.open import open_model

        model = open_model(source, trust_remote_code=trust_remote_code)
        check_finite(model)
        task = task_of(model)
        return model, options.data(model, source, task), task


def quantize_model(
    model: PreTrainedModel, source: str, data: CalibrationData, task: str, spec: QuantSpec, *, seeds: int, search: bool,
    balance: bool,
) -> Quantized:  # fmt: skip
    """Plan, place, calibrate and evaluate, with a word on what is going on."""
    from quietformer.analysis.evaluate import reference_run
    from quietformer.analysis.quantized_quality import measure_seeds, search_estimator
    from quietformer.config.recorded_changes import changes_of
    from quietformer.quant.calibration import quantize_
    from quietformer.results.cost import SCALES
    from quietformer.results.labels import printable
    from quietformer.transforms.balance import balance_
    from quietformer.transforms.gains import gained_norms

    with Steps() as steps:
        total = len(data.evaluation)
        reference = reference_run(
            model, data.evaluation, task, progress=lambda done: steps("evaluating in floating point", done, total)
        )
        if balance and not balance_(model, data.calibration(0)):  # compared with what the model was before
            raise QuietformerError(
                f"{source} has no residual sums between LayerNorms to balance, or they are balanced; leave out --balance"
            )
        plan = quantize_(model, spec, data.evaluation[0])
        searched: list[dict[str, Any]] = []
        if search:
            chosen, searched = search_estimator(model, data, task, steps)
            spec = spec.model_copy(update={"activations": chosen})
            plan.spec = spec
        measured = measure_seeds(model, data, reference, seeds, steps)
    attention = changes_of(model).attention
    evaluation = reference.evaluation
    figures = {
        "version": 1,
        "kind": "quantize",
        "model": {
            "name": printable(source),
            "class": type(model).__name__,
            "parameters": model.num_parameters(),
            "attention": attention.label if attention else "softmax",
        },
        "label": f"{spec.label}, balanced" if gained_norms(model) else spec.label,
        "spec": spec.to_dict(),
        "plan": plan.info().model_dump(),
        "task": task,
        "primary": evaluation.primary,
        "better": evaluation.better,
        "scale": SCALES[evaluation.better],
        "float": evaluation.to_dict()["figures"],
        **measured,
        "search": searched,
        "data": data.described,
        "command": command_line(),
        "versions": versions(),
    }
    return Quantized(model, plan, data, reference, figures)


def shown(value: float | None, name: str) -> str:
    """A figure as people read it: perplexities to two places, shares to four."""
    if value is None:
        return "broken"
    return f"{value:.2f}" if name in ("perplexity", "loss") else f"{value:.4f}"
