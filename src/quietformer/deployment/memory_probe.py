"""How much memory a model file takes, asked in a process that does nothing else.

This file is also the script of that process, so it imports nothing of ours or of torch's when it runs:
python memory_probe.py RUNTIME FILE ARRAYS.npz THREADS prints the bytes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from quietformer.deployment.runtime_model import Feeds
    from quietformer.results.export import RuntimeName


def memory_of(runtime: RuntimeName, path: Path, feeds: Feeds, threads: int) -> int | None:
    """Bytes that loading a file and running it once takes at most; None where this system does not tell."""
    with tempfile.TemporaryDirectory() as place:
        arrays = Path(place) / "arrays.npz"
        np.savez(arrays, **feeds)  # type: ignore[arg-type]  # numpy's stub takes no names for arrays
        words = [sys.executable, __file__, runtime, str(path.absolute()), str(arrays), str(threads)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
    last = done.stdout.split()[-1:] if done.returncode == 0 else []
    return int(last[0]) if last and last[0].isdigit() and int(last[0]) else None


def peak_bytes() -> int:
    """Most bytes this process has held so far; 0 where this system does not tell."""
    try:  # `getrusage` of a new process on Linux begins with what its parent held
        with open("/proc/self/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ModuleNotFoundError:
        return 0
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


def forget_peak() -> None:
    """Let the peak begin with what is held now, where the system can."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="utf-8") as asked:
        asked.write("5")


def _onnxruntime(path: str, feeds: dict[str, Any], threads: int) -> int:
    import onnxruntime

    before, options = peak_bytes(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, feeds)
    return peak_bytes() - before


def _openvino(path: str, feeds: dict[str, Any], threads: int) -> int:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it reports to its makers when it is imported
    import openvino

    core = openvino.Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin
    before = peak_bytes()
    core.compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": threads})(feeds)
    return peak_bytes() - before


def main() -> None:
    runtime, path, arrays, threads = sys.argv[1:]
    feeds = dict(np.load(arrays).items())
    print((_openvino if runtime == "openvino" else _onnxruntime)(path, feeds, int(threads)))


if __name__ == "__main__":
    main()
