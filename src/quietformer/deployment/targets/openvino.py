"""OpenVINO by itself."""

from __future__ import annotations

from quietformer.deployment.openvino_runtime import OPENVINO_FILE
from quietformer.deployment.sentence_files import pooling_note
from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets
from quietformer.deployment.usage_note import PRECISION, openvino_code


@targets.register("openvino")
class OpenVinoTarget(TargetSpec):
    """The IR in `openvino/`, where optimum-intel looks for it too."""

    name = "openvino"
    runtimes = ("openvino",)
    by_default = False  # the IR is written wherever OpenVINO is installed; this asks for it, or for it alone
    install = "openvino"

    def refusal(self, model: ModelToShip) -> str:
        return "encoder-decoders are written for ONNX Runtime only" if model.writes else ""

    def code(self, shipment: Shipment) -> str:
        return openvino_code("FOLDER", OPENVINO_FILE, shipment.inputs, has_processor=shipment.has_processor)

    def note(self, shipment: Shipment) -> str:
        pooling = pooling_note(shipment, "openvino")
        return f"{pooling}\n\n{PRECISION}".strip()
