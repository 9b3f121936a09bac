"""Past keys and values as the state of an OpenVINO model, as optimum-intel and OpenVINO GenAI expect.

A client then passes only new tokens; the runtime keeps the rest until the state is reset. `beam_idx` says which row of the last
step each row continues, so that beams can be reordered.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quietformer.deployment.cache_names import PAST_PREFIX, PRESENT_PREFIX, is_past

ROWS = "beam_idx"


def keep_past_as_state_(model: Any) -> None:
    """Turn inputs and outputs with keys and values into variables that begin empty; in place."""
    from openvino._offline_transformations import apply_make_stateful_transformation

    names = [value.any_name for value in model.inputs if is_past(value.any_name)]
    if not names:
        return
    _reorder_rows(model, names)
    pairs = {name: name.replace(PAST_PREFIX, PRESENT_PREFIX, 1) for name in names}
    apply_make_stateful_transformation(model, pairs)
    _begin_empty(model)
    model.validate_nodes_and_infer_types()


def _reorder_rows(model: Any, names: list[str]) -> None:
    import openvino
    from openvino import opset13 as ops

    rows = ops.parameter(openvino.PartialShape([-1]), openvino.Type.i32, name=ROWS)
    rows.output(0).get_tensor().add_names({ROWS})
    model.add_parameters([rows])
    for name in names:
        past = model.input(name)
        readers = past.get_target_inputs()
        chosen = ops.gather(past, rows, ops.constant(np.int64(0)))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    model.validate_nodes_and_infer_types()


def _begin_empty(model: Any) -> None:
    """A variable without a value begins with no tokens, and as many rows as the step has."""
    from openvino import opset13 as ops

    tokens = ops.shape_of(model.input("input_ids"), "i64")
    rows = ops.gather(tokens, ops.constant(np.array([0], np.int64)), ops.constant(np.int64(0)))
    for node in model.get_ops():
        if node.get_type_name() != "ReadValue":
            continue
        _, *sizes = node.get_output_partial_shape(0)
        others = [ops.constant(np.array([size.get_min_length()], np.int64)) for size in sizes]
        nothing = ops.constant(np.array(0), node.get_output_element_type(0))
        node.set_arguments([ops.broadcast(nothing, ops.concat([rows, *others], 0)).output(0)])
