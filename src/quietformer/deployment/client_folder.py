"""The folder as clients look for it: what is checked before an export, and what is written at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from quietformer.config.options.export import ExportOptions, RuntimeChoice
from quietformer.deployment.card_fields import card_fields
from quietformer.deployment.folder_digests import digests_of
from quietformer.deployment.onnx_export import DETAILS, FLOATING, STALE
from quietformer.deployment.pooled_graph import add_pooling
from quietformer.deployment.push import check_hub_id, check_repository
from quietformer.deployment.runtimes import runtimes_for
from quietformer.deployment.sentence_files import SENTENCE_FILES, embedding_refusal, write_sentence_files
from quietformer.deployment.shipment import ModelToShip, Shipment, model_to_ship, write_common
from quietformer.deployment.target import TargetSpec, chosen_targets, runtime_choice
from quietformer.deployment.usage_note import INTEGER
from quietformer.errors import QuietformerError
from quietformer.files import write_text
from quietformer.models.open_any import HUB_IDS
from quietformer.models.origin import origin_of
from quietformer.results.export import CardFields, ExportDetails


@dataclass(frozen=True)
class ClientPlan:
    """For which clients a model is exported; made before the work, so that a mistake is told at once."""

    model: ModelToShip
    targets: list[TargetSpec]
    runtime: RuntimeChoice | None
    pooled: bool
    card: CardFields


def plan_clients(model: PreTrainedModel, name: str, options: ExportOptions) -> ClientPlan:
    """Which clients are meant, checked against the model and the runtimes that are installed."""
    if options.push:
        check_repository(options.push)
    if options.base_model:
        check_hub_id("--base-model", options.base_model)
    found = model_to_ship(model, origin_of(model))
    chosen = chosen_targets(options.targets, found)
    if options.search and "compressed-tensors" in options.targets:
        raise QuietformerError("--for compressed-tensors: it cannot say what the search changes; pass --no-search")
    runtime = runtime_choice(chosen, options.runtime, named=bool(options.targets))
    runtimes_for(model, runtime)
    if options.pooled and (why := embedding_refusal(found)):
        raise QuietformerError(f"--pooled: {why}")
    if options.pooled and found.settings is not None and not found.settings.include_prompt:
        raise QuietformerError(
            "--pooled: this model pools without the tokens of its prompt, which a graph cannot tell from the text; leave it out"
        )
    if options.pooled and runtime == "openvino":
        raise QuietformerError("--pooled: it changes the ONNX graph, and only OpenVINO is written; add --runtime both")
    is_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()
    card = card_fields(found, options.base_model or HUB_IDS.get(name) or (name if is_hub_id else ""))
    return ClientPlan(found, chosen, runtime, options.pooled, card)


def stale_files(out: Path) -> tuple[str, ...]:
    """Patterns of what an earlier export has left in a folder; if it was none, weights and graphs may be anybody's."""
    weights = ("onnx", "model*.safetensors*") if (out / DETAILS).is_file() else ()
    return (*STALE, *SENTENCE_FILES, *weights)


def lay_out(plan: ClientPlan, draft: Path, details: ExportDetails, calibrated: PreTrainedModel) -> ExportDetails:
    """Write config.json and what every client needs, and say in the details how each loads the folder."""
    details = details.model_copy(update={"pooled": plan.pooled})
    shipment = Shipment(plan.model, draft, details, calibrated)
    write_common(shipment)
    if plan.model.embeds_text:
        write_sentence_files(shipment)
    for name in (INTEGER, FLOATING) if plan.pooled else ():
        if (draft / name).is_file():
            add_pooling(draft / name, shipment.settings)
    for target in plan.targets:
        target.write(shipment)
    if {target.name for target in plan.targets if "onnxruntime" in target.runtimes} == {"transformers.js"}:
        for stem in shipment.stems:
            (draft / f"{stem}.onnx").unlink()  # nobody looks for it under this name
        details = _moved(details, shipment.graph)
    details = details.model_copy(update={"targets": [target.shipped(shipment) for target in plan.targets]})
    details = details.model_copy(update={"files": digests_of(draft)})
    write_text(draft / DETAILS, details.model_dump_json(indent=1) + "\n")
    return details


def _moved(details: ExportDetails, graph: str) -> ExportDetails:
    runtimes = [
        one.model_copy(update={"file": graph}) if one.runtime == "onnxruntime" else one for one in details.runtimes
    ]
    return details.model_copy(update={"runtimes": runtimes})
