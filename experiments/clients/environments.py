"""One environment for each client: packages by name and version, from PyPI and npm."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.provenance import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
PACKAGE = "@huggingface/transformers@4.3.1"


@dataclass(frozen=True)
class Environment:
    """Packages that go together, and the ones whose versions are told."""

    name: str
    packages: tuple[str, ...]
    shown: tuple[str, ...]
    torch: bool = True
    pinned: bool = False
    """With all our pins, and our own package."""


ENVIRONMENTS = {
    one.name: one
    for one in (
        Environment("ours", ("sentence-transformers==6.2.0", "compressed-tensors==0.20.0", "pillow"),
                    ("sentence-transformers", "compressed-tensors", "transformers"), pinned=True),
        Environment("st_onnx", ("sentence-transformers[onnx]==5.7.0", "transformers==4.57.6", "pillow"),
                    ("sentence-transformers", "optimum-onnx", "transformers")),
        Environment("st_openvino", ("sentence-transformers[openvino]==6.2.0", "transformers==5.5.4", "pillow"),
                    ("sentence-transformers", "optimum-intel", "openvino", "transformers")),
        Environment("fastembed", ("fastembed==0.9.0",), ("fastembed",), torch=False),
    )
}  # fmt: skip


def make(environment: Environment, place: Path) -> Path:
    """Its interpreter; installed only if it is not there yet."""
    folder = (place / environment.name).absolute()
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.is_file():
        return python
    pins = ["-c", str(CONSTRAINTS)] if environment.pinned else []
    run(sys.executable, "-m", "venv", str(folder))
    pip = (str(python), "-m", "pip", "install", "--quiet")
    if environment.torch:  # first and pinned, or several GB come that a CPU cannot use
        torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
        run(*pip, torch)
        pins = [*pins, torch]  # nor does another package change it
    own = [f"{ROOT}[openvino]"] if environment.pinned else []
    run(*pip, *pins, *own, *environment.packages)
    # torchvision's wheel does not import beside a CPU build of torch, and transformers imports it where it is installed.
    run(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision")
    ready.touch()
    return python


def make_node(place: Path) -> Path:
    """A folder with transformers.js; its install script fetches a CUDA build that is not needed, so it does not run."""
    folder = (place / "node").absolute()
    if not (folder / "node_modules" / PACKAGE.rpartition("@")[0]).is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        run("npm", "init", "--yes", cwd=folder)
        run("npm", "install", "--silent", "--ignore-scripts", PACKAGE, cwd=folder)
    return folder


def versions(environment: Environment, python: Path) -> str:
    """`sentence-transformers 6.2.0, transformers 5.5.4`."""
    code = f"from importlib.metadata import version\nprint(', '.join(f'{{n}} {{version(n)}}' for n in {environment.shown}))"
    return run(str(python), "-c", code).strip()


def run(*words: str, cwd: Path | None = None, own_code: bool = False) -> str:
    """What a command prints; its last words where it fails."""
    named = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if own_code:
        named["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(list(words), capture_output=True, text=True, check=False, cwd=cwd, env=named)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300])
    return done.stdout
