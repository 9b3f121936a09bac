"""Does the code of docs/clients.md and of the model cards run where its client is installed?

python -m experiments.clients.snippets [--environments DIR]

Takes the environments and exports of experiments.clients.compare, and makes what is not there. One line for each piece of
code; exit code 1 if one fails. What needs a server (text-embeddings-inference) is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from experiments.clients.compare import classifier, exported
from experiments.clients.environments import ENVIRONMENTS, make, make_node, run
from experiments.provenance import ROOT

PAGE = ROOT / "docs" / "clients.md"
WHERE = (
    ("fastembed", "fastembed"),
    ("optimum.intel", "st_openvino"),
    ('backend="openvino"', "st_openvino"),
    ("optimum.onnxruntime", "st_onnx"),
    ('backend="onnx"', "st_onnx"),
    ("quietformer", "ours"),
    ("import openvino", "st_openvino"),
)
"""What code has in it, and the environment that it runs in; the first that fits."""


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
            script.write_text(code.replace("/path/to/", f"{folder.parent}/").replace("FOLDER", folder.name))
            run("node", script.name, cwd=node)
        else:
            name = next((name for words, name in WHERE if words in code), "ours")
            python = str(make(ENVIRONMENTS[name], place))
            run(python, "-c", code.replace("FOLDER", str(folder)), own_code=name == "ours")
    except (RuntimeError, OSError) as error:
        return f"FAILS: {error}"
    return "runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=Path("clients"), help="where environments and exports are")
    place = parser.parse_args().environments.absolute()
    graph, compressed = (exported("minilm", place, "minilm", way) for way in ("graph", "static"))
    labelled = exported(classifier(place / "classifier-fp32"), place, "classifier", "graph")
    pieces = [*of_page(graph, compressed)]
    pieces += [piece for folder in (graph, labelled, compressed) for piece in of_card(folder)]
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
