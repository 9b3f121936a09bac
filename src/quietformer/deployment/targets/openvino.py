"""OpenVINO by itself, and our own class around it."""

from __future__ import annotations

from quietformer.deployment.openvino_runtime import OPENVINO_FILE
from quietformer.deployment.shipment import Shipment
from quietformer.deployment.target import TargetSpec, targets


@targets.register("openvino")
class OpenVinoTarget(TargetSpec):
    """The IR in `openvino/`, where optimum-intel looks for it too."""

    name = "openvino"
    runtimes = ("openvino",)
    by_default = False  # the IR is written wherever OpenVINO is installed; this asks for it, or for it alone
    install = "openvino"

    def code(self, shipment: Shipment) -> str:
        return (
            "import openvino\n\n"
            f'model = openvino.Core().compile_model("FOLDER/{OPENVINO_FILE}", "CPU")\n'
            f"outputs = model({{name: arrays[name] for name in {shipment.inputs!r}}})"
        )
