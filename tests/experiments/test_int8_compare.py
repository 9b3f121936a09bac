"""The comparison of INT8 tools: from reports to rows, and a model that fails is a line."""

from __future__ import annotations

import sys

import pytest

from experiments.int8 import compare
from quietformer.results.export import RuntimeDetails, TimedRun
from tests.rendering.test_export_page import TOOLS, report


def test_speed_is_against_fp32_in_onnx_runtime():
    rows = {row["name"]: row for row in compare.tools(report())}
    assert list(rows) == [row.name for row in TOOLS]
    assert rows["ours"]["speed"] == pytest.approx(TOOLS[0].fastest_ms / rows["ours"]["fastest_ms"])
    assert rows["simulated"]["speed"] is None


def test_every_tensor_has_a_row_for_each_runtime_with_its_own_fp32():
    found = report()
    row = found.export.latency[-1]
    fast = TimedRun(runtime="openvino", kind="int8", precision="bf16", fastest_ms=1.0, median_ms=2.0)
    details = found.export.model_copy(
        update={
            "runtimes": [*found.export.runtimes, RuntimeDetails(runtime="openvino", precision="bf16", bytes=7)],
            "latency": [row.model_copy(update={"runs": [*row.runs, fast]})],
        }
    )
    metrics = {"onnxruntime": found.real, "openvino": found.real}
    rows = list(compare.every_tensor(found.model_copy(update={"export": details, "real_by_runtime": metrics})))
    assert [one["runtime"] for one in rows] == ["ONNX Runtime, f32", "OpenVINO, bf16"]
    assert rows[1]["speed"] == row.run("onnxruntime", "fp32").median_ms
    assert rows[1]["bytes"] == 7


def test_a_tool_or_model_that_fails_is_a_line_of_the_table():
    row = {"name": "NNCF", "error": "NNCF: it broke"}
    fine = {"metrics": ["cosine"], "threads": 1, "instruction_set": "AVX2", "rows": [row]}
    text = compare.table({"models": {"a": fine, "b": {"error": "no such model", "rows": []}}})
    assert "| NNCF | it broke |" in text
    assert "**b**: no such model" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_an_export_that_fails_is_told_by_its_last_line(tmp_path):
    with pytest.raises(RuntimeError, match="no-such-model") as caught:
        compare.exported(tmp_path / "no-such-model", [])
    assert "\n" not in str(caught.value)
    assert sys.executable not in str(caught.value)
