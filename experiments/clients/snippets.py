"""Does the code of docs/clients.md and of the model cards run where its client is installed?

python -m experiments.clients.snippets [--environments DIR] [--models DIR]

Takes the environments and exports of experiments.clients.compare, and makes what is not there. Where DIR has DINOv2-small (from
experiments.int8.model_folders), its card is run too. One line for each piece of code; exit code 1 if one fails. What needs a
server (text-embeddings-inference) is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

import quietformer as qf
from experiments.clients.compare import SMALL, classifier, exported
from experiments.clients.environments import ENVIRONMENTS, make, make_node, run
from experiments.provenance import ROOT

PAGE = ROOT / "docs" / "clients.md"
WHERE = (
    ("fastembed", "fastembed"),
    ("optimum.intel", "st_openvino"),
    ('backend="openvino"', "st_openvino"),
    ("optimum.onnxruntime", "st_onnx"),
    ('backend="onnx"', "st_onnx"),
)
"""What code has in it, and the environment that it runs in: the first that fits, or our own, which has both runtimes."""

PICTURES = "[__import__('numpy').random.default_rng(0).integers(0, 256, (240, 320, 3), dtype='uint8')]"
"""Stands for the pictures that a card asks for."""


def of_page(graph: Path, compressed: Path) -> Iterator[tuple[str, str, str, Path]]:
    """Title, language, code and folder of every block."""
    for language, code in re.findall(r"```(python|js)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        folder = compressed if "FOLDER-compressed" in code else graph
        named = code.replace("FOLDER-compressed", "FOLDER").replace("model_fp32.onnx", "onnx/model.onnx")
        yield "docs/clients.md", language, named, folder


def of_card(folder: Path) -> Iterator[tuple[str, str, str, Path]]:
    """The same of a folder's own card: each way of a client to load it by itself."""
    for target in json.loads((folder / "export.json").read_text(encoding="utf-8"))["targets"]:
        for code in re.split(r"\n\n(?=# )", target["code"]):
            yield f"card of {folder.name}, {target['name']}", target["language"], code, folder


def ran(language: str, code: str, folder: Path, place: Path) -> str:
    """How it went, in a line."""
    try:
        if language == "js":
            node = make_node(place)
            script = node / "snippet.mjs"
            picture(node / "picture.png")
            script.write_text(code.replace("/path/to/", f"{folder.parent}/").replace("FOLDER", folder.name))
            run("node", script.name, cwd=node)
        else:
            name = next((name for words, name in WHERE if words in code), "ours")
            python = str(make(ENVIRONMENTS[name], place))
            code = code.replace("FOLDER", str(folder)).replace("(pictures,", f"({PICTURES},")
            run(python, "-c", code.replace("picture.png", str(picture(place / "picture.png"))), own_code=name == "ours")
    except (RuntimeError, OSError) as error:
        return f"FAILS: {error}"
    return "runs"


def picture(path: Path) -> Path:
    """The same noise each time."""
    if not path.is_file():
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)).save(path)
    return path


def seeing(place: Path, models: Path) -> list[Path]:
    """The export of an image model, where its folder is at hand."""
    source, out = models / "dinov2-small", place / "exported" / "graph" / "dinov2-small"
    if not source.is_dir():
        return []
    if not out.is_dir():
        targets = ["quietformer", "onnxruntime", "openvino", "optimum", "transformers.js"]
        qf.export(source, out, targets=targets, images=models / "data" / "photos", **SMALL)
    return [out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=Path("clients"), help="where environments and exports are")
    parser.add_argument("--models", type=Path, default=Path("models"), help="model folders, for DINOv2-small")
    given = parser.parse_args()
    place = given.environments.absolute()
    graph, compressed = (exported("minilm", place, "minilm", way) for way in ("graph", "static"))
    labelled = exported(classifier(place / "classifier-fp32"), place, "classifier", "graph")
    pieces = [*of_page(graph, compressed)]
    pieces += [
        piece for folder in (graph, labelled, compressed, *seeing(place, given.models)) for piece in of_card(folder)
    ]
    failed = 0
    for title, language, code, folder in pieces:
        if language in ("python", "js"):
            found = ran(language, code, folder, place)
            failed += found != "runs"
            words = next(line for line in code.splitlines() if "FOLDER" in line).strip()
            print(f"{title}: {words}: {found}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
