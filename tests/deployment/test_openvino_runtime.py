"""OpenVINO beside ONNX Runtime: missing, silent, alone, and where it does not take a graph."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import quietformer as qf
from quietformer.deployment import runtimes
from quietformer.deployment.openvino_runtime import OPENVINO_FILE, has_openvino, without_telemetry
from quietformer.deployment.processor import instruction_set, instructions_of, processor_name
from quietformer.deployment.turns import take_turns
from quietformer.errors import QuietformerError
from tests.tiny_models import build, inputs


@pytest.fixture(scope="module")
def model():
    model = build("vit")
    qf.quantize_(model, qf.QuantSpec(), inputs("vit"))
    qf.calibrate_(model, [inputs("vit")])
    return model


@pytest.fixture
def no_openvino(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)  # an import of it fails


def test_openvino_that_is_missing_is_told_before_the_work(model, tmp_path, no_openvino):
    for choice in ("openvino", "both"):
        with pytest.raises(QuietformerError, match=r"openvino is not installed.*pip install quietformer\[openvino\]"):
            qf.export("no such model", tmp_path / "out", runtime=choice)
    assert not has_openvino()
    options = qf.OnnxOptions(weight_type="uint8", timed=False)
    details = qf.export_onnx(model, tmp_path / "out", [inputs("vit")], options=options)
    assert [one.runtime for one in details.runtimes] == ["onnxruntime"]
    assert not (tmp_path / "out" / "openvino").exists()


def test_openvino_alone_leaves_no_onnx(model, tmp_path):
    options = qf.OnnxOptions(weight_type="uint8", timed=False, runtime="openvino")
    details = qf.export_onnx(model, tmp_path / "out", [inputs("vit")], options=options)
    assert [one.runtime for one in details.runtimes] == ["openvino"]
    assert not list((tmp_path / "out").glob("*.onnx*"))
    assert "onnxruntime" not in (tmp_path / "out" / "README.md").read_text()
    found = runtimes.runtime_model("openvino", tmp_path / "out", precision="f32")(inputs("vit"))["logits"]
    with torch.no_grad():
        expected = model(**inputs("vit")).logits
    assert float(torch.nn.functional.cosine_similarity(found, expected).mean()) > 0.999
    # What is written anew for another runtime leaves nothing of this one.
    options = qf.OnnxOptions(weight_type="uint8", timed=False, runtime="onnxruntime")
    qf.export_onnx(model, tmp_path / "out", [inputs("vit")], options=options)
    assert not (tmp_path / "out" / OPENVINO_FILE).exists()


def test_a_graph_that_openvino_does_not_take_is_one_line_beside_onnxruntime(model, tmp_path, monkeypatch):
    def refuse(*_):
        raise QuietformerError("OpenVINO does not take the graph: no")

    monkeypatch.setattr(runtimes, "write_openvino", refuse)
    options = qf.OnnxOptions(weight_type="uint8", timed=False, runtime="both")
    details = qf.export_onnx(model, tmp_path / "out", [inputs("vit")], options=options)
    assert [one.error for one in details.runtimes] == [None, "OpenVINO does not take the graph: no"]
    with pytest.raises(QuietformerError, match="does not take the graph"):
        qf.export_onnx(model, tmp_path / "other", [inputs("vit")], options=qf.OnnxOptions(runtime="openvino"))
    assert not (tmp_path / "other").exists()


def test_openvino_is_imported_without_its_telemetry():
    code = (
        "import sys, socket\n"
        "def refuse(*_, **__): raise AssertionError('network')\n"
        "socket.getaddrinfo = socket.socket.connect = refuse\n"
        "from quietformer.deployment.openvino_runtime import import_openvino\n"
        "import_openvino()\n"
        "from openvino.tools.ovc import telemetry_utils\n"
        "print(telemetry_utils.tm.__name__, 'openvino_telemetry' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "openvino.tools.ovc.telemetry_stub False\n", done.stderr


def test_a_telemetry_that_the_user_imported_stays(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino_telemetry", torch)
    with without_telemetry():
        assert sys.modules["openvino_telemetry"] is None
    assert sys.modules["openvino_telemetry"] is torch


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["avx2", "fma"], "AVX2 without VNNI"),
        (["avx2", "avx512f"], "AVX-512 without VNNI"),
        (["avx2", "avx512f", "avx512_vnni", "avx512_bf16"], "AVX-512 VNNI, bf16"),
        (["avx512_vnni", "amx_int8", "amx_bf16"], "AMX, bf16"),
        (["avx2", "avx_vnni"], "AVX-VNNI"),
        (["asimd", "asimddp"], "NEON with dot products"),
        (["sse2"], ""),
    ],
)
def test_the_instruction_set_is_read_from_the_processors_flags(flags, expected):
    assert instructions_of(flags) == expected


def test_this_processor_has_a_name_and_instructions():
    assert processor_name()
    assert instruction_set()


def test_competitors_take_turns_and_each_is_first_every_other_time():
    order: list[str] = []
    times = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 4)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab" + "ba"  # the first to warm up
    assert {name: len(found) for name, found in times.items()} == {"a": 4, "b": 4}
    assert len(take_turns({"a": lambda: None}, 50, seconds=0.0)["a"]) == 3


def test_a_signal_after_several_models_is_handled(model, tmp_path):
    """OpenVINO's plugin exchanges the signal stack; models that come and go in any order must not leave a freed one."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from quietformer.deployment.openvino_runtime import OpenVinoModel\n"
        "path = Path(sys.argv[1])\n"
        "one = OpenVinoModel(path, threads=1); other = OpenVinoModel(path, threads=1)\n"
        "del one\n"
        "del other\n"
        "signal.signal(signal.SIGINT, lambda *_: print('handled', flush=True))\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    options = qf.OnnxOptions(weight_type="int8", timed=False, runtime="openvino")
    qf.export_onnx(model, tmp_path / "out", [inputs("vit")], options=options)
    path = str(tmp_path / "out" / OPENVINO_FILE)
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n")
