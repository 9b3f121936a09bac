"""The model as one exported graph with its sites marked, batch and length free."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import check_model, has_decoder, in_eval_mode, run
from quietformer.errors import QuietformerError, in_one_line, root_of
from quietformer.quant.quantizer import marking

OPSET = 21
"""The first in which 16 bit integers can be quantized to."""

OUTPUTS = ("logits", "last_hidden_state")
PROJECTED = ("text_embeds", "image_embeds", "audio_embeds", "embeds")
"""What CLIP and its kin give past their hidden states."""


class WrappedModel(nn.Module):
    """A model with inputs and outputs as a graph has them: tensors in a row."""

    model: PreTrainedModel


class _OneOutput(WrappedModel):
    """The model by the names of its inputs, giving one tensor."""

    def __init__(self, model: PreTrainedModel, names: list[str], output: str) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.output = output
        accepted = inspect.signature(model.forward).parameters
        self.fixed: dict[str, Any] = {"use_cache": False} if "use_cache" in accepted else {}

    def forward(self, *inputs: Tensor) -> Tensor:
        result: Tensor = getattr(self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed), self.output)
        return result


def check_exportable(model: PreTrainedModel) -> None:
    """Refuse what is not a transformers model, and encoder-decoders that do not write texts of texts or of sound."""
    check_model(model)
    if type(model).__name__.endswith("WithProjection"):
        raise _projects(model)
    if not has_decoder(model):
        return
    why = "it has no head that writes tokens" if not model.can_generate() else f"it takes {model.main_input_name}"
    if not model.can_generate() or model.main_input_name not in ("input_ids", "input_features"):
        raise QuietformerError(
            f"{type(model).__name__} cannot be exported: {why}; its encoder can, in Python: "
            f"quietformer.export(quietformer.open_model(MODEL).get_encoder(), OUT)"
        )


def output_name(model: PreTrainedModel, example: dict[str, Tensor]) -> str:
    """Which of the model's outputs is exported: its logits if it has a head, its hidden states if not."""
    with torch.no_grad():
        result = run(model, example)
    if any(isinstance(getattr(result, name, None), Tensor) for name in PROJECTED):
        raise _projects(model)
    for name in OUTPUTS:
        if isinstance(getattr(result, name, None), Tensor):
            return name
    raise QuietformerError(
        f"{type(model).__name__} gives neither logits nor hidden states, so there is nothing to export"
    )


def _projects(model: PreTrainedModel) -> QuietformerError:
    name = type(model).__name__
    return QuietformerError(
        f"{name} cannot be exported: its embeddings are a projection of its hidden states, which is not written; export "
        f"{name.removesuffix('WithProjection')} without it, and project what it gives by yourself"
    )


def marked_program(model: PreTrainedModel, example: dict[str, Tensor], output: str) -> ir.Model:
    """Export by torch; the example must have at least two sequences of at least two tokens, or sizes become fixed."""
    free = torch.export.Dim.DYNAMIC
    # Images and features of audio have sizes that the model fixes; rows of tokens or samples have not.
    shapes = tuple({0: free, 1: free} if tensor.dim() == 2 else {0: free} for tensor in example.values())
    graph = exported_program(_OneOutput(model, list(example), output), example, (shapes,), [output])
    name_dimensions(graph)
    return graph


def exported_program(wrapped: WrappedModel, example: dict[str, Tensor], shapes: Any, outputs: list[str]) -> ir.Model:
    """A wrapped model as torch's exporter writes it, with a mark where each quantizer stands."""
    token = marking.set(True)
    try:
        with _silent(), in_eval_mode(wrapped.model), torch.no_grad():
            program = torch.onnx.export(
                wrapped.eval(),
                tuple(example.values()),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=list(example),
                output_names=outputs,
                opset_version=OPSET,
                verbose=False,
            )
    except QuietformerError:
        raise
    except Exception as error:  # whatever the exporter cannot translate
        raise QuietformerError(
            f"{type(wrapped.model).__name__} cannot be exported to ONNX: {in_one_line(root_of(error))}"
        ) from error
    finally:
        marking.reset(token)
    assert program is not None
    return program.model


def name_dimensions(model: ir.Model) -> None:
    """`batch` and `length`, instead of the exporter's s43 and s53."""
    renamed: dict[str, str] = {}
    for value in model.graph.inputs:
        for position, dimension in enumerate(value.shape or ()):
            if isinstance(dimension, ir.SymbolicDim) and dimension.value is not None:
                renamed.setdefault(dimension.value, ("batch", "length")[min(position, 1)])
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([
                renamed.get(str(d.value), d.value) if isinstance(d, ir.SymbolicDim) else d for d in value.shape
            ])  # fmt: skip


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The exporter reports its steps, missing optional packages and deprecations of its own."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
