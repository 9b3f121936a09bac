"""`bench`: every model of a folder is timed in turns on every shape, and a folder or shape that will not do is one line."""

from __future__ import annotations

import json
import shutil

import pytest

import quietformer as qf
from tests.commands import fails

QUICK = ("--shapes", "1x8,3x16", "--seconds", "0.01", "--threads", "1")


@pytest.fixture
def folder(exported_encoder):
    return exported_encoder


def test_int8_stands_beside_fp32_in_every_runtime(run, folder, tmp_path):
    code, out, error = run("bench", folder, *QUICK, "--json", tmp_path / "report.json")
    assert code == 0, error
    report = qf.Report.read(tmp_path / "report.json")
    assert [(row.batch, row.length) for row in report.rows] == [(1, 8), (3, 16)]
    models = [("onnxruntime", "fp32"), ("onnxruntime", "int8"), ("openvino", "int8")]
    assert all([(one.runtime, one.kind) for one in row.runs] == models for row in report.rows)
    assert all(0 < one.fastest_ms <= one.median_ms for row in report.rows for one in row.runs)
    assert [(one.runtime, one.kind) for one in report.memory] == models
    files = [folder / one.file for one in report.memory[:2]]
    assert [one.bytes for one in report.memory[:2]] == [file.stat().st_size for file in files]
    assert all(one.peak_bytes is None or one.peak_bytes > 0 for one in report.memory)
    assert "Sequences a second" in out
    assert json.loads((tmp_path / "report.json").read_text())["command"].startswith("quietformer bench ")


def test_without_fp32_it_is_said_how_to_have_it(run, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "int8", ignore=shutil.ignore_patterns("onnx"))
    arguments = ("bench", tmp_path / "int8", *QUICK, "--no-memory", "--runtime", "onnxruntime")
    code, out, _ = run(*arguments, "--json", tmp_path / "report.json")
    assert code == 0
    assert "export with --keep-fp32" in " ".join(out.split())
    report = qf.Report.read(tmp_path / "report.json")
    assert [one.peak_bytes for one in report.memory] == [None]
    assert "Speed against" not in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--shapes", "8by128"), "--shapes takes BATCHxLENGTH"),
        (("--shapes", "0x16"), "both at least 1"),
        (("--shapes", "1x65"), "its longest text may be shorter"),
        (("--threads", "0"), "threads must be >= 1"),
    ],
)
def test_a_shape_that_will_not_do_is_one_line(run, folder, options, says):
    assert says in fails(run, "bench", folder, "--seconds", "0.01", "--no-memory", *options)


def test_a_graph_that_is_damaged_is_not_left_out_in_silence(run, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "int8", ignore=shutil.ignore_patterns("onnx"))
    path = tmp_path / "int8" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model.onnx is damaged" in fails(run, "bench", tmp_path / "int8", *QUICK, "--no-memory")
    path.unlink()  # a copy for OpenVINO alone
    code, _, error = run("bench", tmp_path / "int8", *QUICK, "--no-memory", "--json", tmp_path / "report.json")
    assert code == 0, error
    assert [one.runtime for one in qf.Report.read(tmp_path / "report.json").memory] == ["openvino"]


def test_a_folder_without_a_graph_is_one_line(run, tmp_path):
    assert "is not a folder" in fails(run, "bench", tmp_path / "none")
    assert "is not complete" in fails(run, "bench", tmp_path)
