"""Clients that an exported folder is laid out for: a registry, one file a client in `targets/`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from quietformer.config.options.export import RuntimeChoice
from quietformer.config.registry import Registry
from quietformer.config.spec_base import Spec, nearest
from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.errors import QuietformerError
from quietformer.results.export import RuntimeName, ShippedTarget


class TargetSpec(Spec):
    """A client, and what it looks for in a folder."""

    name: ClassVar[str]
    """What the user calls it: `--for NAME`."""
    runtimes: ClassVar[tuple[RuntimeName, ...]] = ("onnxruntime",)
    """It loads what is written for any one of these."""
    by_default: ClassVar[bool] = True
    """Whether the folder is laid out for it unless the user chooses."""
    language: ClassVar[str] = "python"
    """What `code` is written in."""
    install: ClassVar[str]
    """What to install for it."""

    def refusal(self, model: ModelToShip) -> str:
        """Why such a model is not for this client; empty if it is."""
        return ""

    def write(self, shipment: Shipment) -> None:
        """Add what the client needs beside graphs, config.json and tokenizer, and move what it looks for elsewhere."""
        return

    @abstractmethod
    def code(self, shipment: Shipment) -> str:
        """How the client loads the folder: a few lines, in which the folder is called FOLDER."""

    def note(self, shipment: Shipment) -> str:
        """What there is to know about this client; empty if nothing."""
        return ""

    def shipped(self, shipment: Shipment) -> ShippedTarget:
        return ShippedTarget(
            name=self.name,
            install=self.install,
            language=self.language,
            code=self.code(shipment),
            note=self.note(shipment),
        )


targets: Registry[TargetSpec] = Registry("target", home="quietformer.deployment.targets")


def every_target() -> list[TargetSpec]:
    return [targets[kind]() for kind in targets]


def chosen_targets(names: Sequence[str], model: ModelToShip) -> list[TargetSpec]:
    """The targets of these names, or those that suit the model; one that does not is an error."""
    known = {target.name: target for target in every_target()}
    for name in names:
        if name not in known:
            raise QuietformerError(f"--for: unknown target {name!r}{nearest(name, known)}")
        if why := known[name].refusal(model):
            raise QuietformerError(f"--for {name}: {why}")
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    return [target for target in known.values() if target.by_default and not target.refusal(model)]


def runtime_choice(chosen: Sequence[TargetSpec], asked: RuntimeChoice | None, *, named: bool) -> RuntimeChoice | None:
    """What `--runtime` has to be for these targets; None for the usual choice."""
    for target in chosen:
        if asked not in (None, "both") and asked not in target.runtimes:
            raise QuietformerError(
                f"--for {target.name} loads what is written for {' or '.join(target.runtimes)}; leave out --runtime {asked}"
            )
    if asked is not None or not named:
        return asked
    needed = {target.runtimes for target in chosen}
    if ("openvino",) not in needed:
        return "onnxruntime" if needed == {("onnxruntime",)} else None
    return "openvino" if needed == {("openvino",)} else "both"
