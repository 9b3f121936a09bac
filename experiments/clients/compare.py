"""Do clients load an exported folder as it is, and do they give what our own runtime gives?

python -m experiments.clients.compare [--environments DIR] [--models DIR] [--keep]

Makes one environment for each client (some GB, some minutes), exports MiniLM, gte-small (where DIR has it, from
experiments.int8.model_folders) and a small classifier, and loads each in every client.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import quietformer as qf
from experiments.clients.environments import ENVIRONMENTS, PACKAGE, make, make_node, run, versions
from experiments.documents import markdown
from experiments.provenance import keep, keep_option_
from quietformer.models.open_any import resolve

HERE = Path(__file__).parent
TEXTS = [
    "The quiet head does nothing.",
    "A cat sat on the mat while the rain fell outside.",
    "x",
    "How do I reset my password when I no longer have access to the e-mail address I signed up with many years ago?",
    "Überraschung: naïve café.",
    "Is this a question?",
]
PRECISIONS = ("static", "token")
"""Of activations in compressed-tensors."""
NOT_SHOWN = {
    "sentence-transformers": ("compressed-tensors",),
    "optimum": ("sentence-transformers",),
    "OpenVINO": ("sentence-transformers", "optimum-intel", "transformers"),
    "compressed-tensors": ("sentence-transformers",),
}
"""What else is in the environment of a client whose name begins so."""
SMALL = {"search": False, "timed": False, "sequences": 16, "calibration": 2}
ENCODERS, BOTH = ("minilm", "gte-small"), ("minilm", "gte-small", "classifier")
CLIENTS: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    ("sentence-transformers, our module", "ours", "ours-as-module", "onnxruntime", ENCODERS),
    ("sentence-transformers, our module, fp32 graph", "ours", "ours-in-fp32", "torch", ENCODERS),
    ("sentence-transformers, ONNX", "st_onnx", "sentence-transformers-onnx", "onnxruntime", ENCODERS),
    ("sentence-transformers, OpenVINO", "st_openvino", "sentence-transformers-openvino", "openvino", ENCODERS),
    ("optimum ORTModel", "st_onnx", "optimum", "onnxruntime", BOTH),
    ("optimum OVModel", "st_openvino", "optimum-openvino", "openvino", BOTH),
    ("fastembed", "fastembed", "fastembed", "onnxruntime", ENCODERS),
    ("OpenVINO", "st_openvino", "openvino", "openvino", BOTH),
    ("transformers.js", "node", "", "onnxruntime", BOTH),
    ("compressed-tensors, static", "ours", "compressed-tensors", "static", BOTH),
    ("compressed-tensors, per token", "ours", "compressed-tensors", "token", BOTH),
]
"""What the table calls it, its environment, its loader, what it is compared with, and the models it loads: `torch` is the
original model, `static` and `token` our own runtime on an export in compressed-tensors, the others our runtime on the same."""


def classifier(folder: Path) -> Path:
    """MiniLM with a head that tells questions from statements, trained on a few dozen sentences where it is not there yet."""
    if folder.is_dir():
        return folder
    from transformers import AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(0)
    labels = {0: "statement", 1: "question"}
    model = BertForSequenceClassification.from_pretrained(
        resolve("minilm"), num_labels=2, id2label=labels, label2id={name: place for place, name in labels.items()}
    )
    tokenizer = AutoTokenizer.from_pretrained(resolve("minilm"))
    things = ("the cat", "this bridge", "your idea", "the train", "a good book", "the rain", "her song", "his plan")
    asked = [
        f"{word} {thing} {rest}?"
        for word in ("Is", "Where is", "Why is")
        for thing in things
        for rest in ("here", "so old")
    ]
    told = [
        f"{thing} is {rest}."
        for thing in things
        for rest in ("here", "so old", "gone", "on time", "far away", "in the house")
    ]
    batch = tokenizer([*asked, *told], padding=True, return_tensors="pt")
    wanted = torch.tensor([1] * len(asked) + [0] * len(told))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    for _ in range(20):
        loss = model(**batch, labels=wanted).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def exported(source: str | Path, place: Path, name: str, way: str) -> Path:
    """The folder that clients load: `graph` for all that take one, or compressed-tensors in two ways. Made once."""
    out = place / "exported" / way / name
    own = [] if name == "classifier" else ["sentence-transformers"]
    if not out.is_dir() and way == "graph":
        more = [] if name == "classifier" else ["fastembed"]
        chosen = ["quietformer", "onnxruntime", "openvino", "optimum", "transformers.js", *own, *more]
        qf.export(source, out, targets=chosen, keep_fp32=True, **SMALL)
    elif not out.is_dir():
        options: dict[str, Any] = SMALL | {
            "granularity": "token" if way == "token" else "tensor",
            "placement": "linear",
        }
        qf.export(source, out, targets=["compressed-tensors", *own], runtime="onnxruntime", **options)
    return out


def outputs(loader: str, python: str, folder: Path, place: Path, *, own_code: bool = True) -> np.ndarray[Any, Any]:
    """What a client gives for the texts, in its own environment."""
    texts, out = place / "texts.json", place / "outputs.json"
    texts.write_text(json.dumps(TEXTS), encoding="utf-8")
    if loader:
        run(python, str(HERE / "load_in_client.py"), loader, str(folder), str(texts), str(out), own_code=own_code)
    else:
        run("node", str(HERE / "load_in_client.mjs"), str(folder), str(texts), str(out), cwd=Path(python))
    return np.array(json.loads(out.read_text(encoding="utf-8")))


def wanted(reference: str, python: str, folder: Path, source: Path, place: Path) -> np.ndarray[Any, Any]:
    """What a client has to give: our own runtime on the same folder, or the original model in torch."""
    if reference == "torch":
        return outputs("original", python, source, place)
    own = "ours-in-openvino" if reference == "openvino" else "ours"
    return outputs(own, sys.executable, folder, place)


def compared(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> dict[str, float]:
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    return {"difference": float(np.abs(one - other).max()), "cosine": float(cosines.mean())}


def measured(place: Path, sources: dict[str, str | Path]) -> Iterator[dict[str, Any]]:
    """A row for each client: how far it is from our own runtime on each model."""
    ours: dict[tuple[str, str], np.ndarray[Any, Any]] = {}
    for title, environment, loader, reference, models in CLIENTS:
        row: dict[str, Any] = {"client": title, "reference": reference, "models": {}}
        try:
            if environment == "node":
                python, row["versions"] = str(make_node(place)), PACKAGE.lstrip("@").replace("@", " ")
            else:
                made = make(ENVIRONMENTS[environment], place)
                python, row["versions"] = str(made), versions(ENVIRONMENTS[environment], made)
        except (RuntimeError, OSError) as error:
            yield row | {"error": str(error)}
            continue
        for model in (model for model in models if model in sources):
            way = reference if reference in PRECISIONS else "graph"
            folder = exported(sources[model], place, model, way)
            try:
                found = outputs(loader, python, folder, place, own_code=environment == "ours")
                if (reference, model) not in ours:
                    ours[reference, model] = wanted(reference, python, folder, Path(resolve(sources[model])), place)
                row["models"][model] = compared(ours[reference, model], found)
            except (RuntimeError, OSError) as error:
                row["models"][model] = {"error": str(error)}
            print(title, model, row["models"][model], flush=True)
        yield row


def table(result: dict[str, Any]) -> str:
    """For the documents: how far each client is from our own runtime."""
    lines = [["client", "versions", *BOTH]]
    for row in result["rows"]:
        cells = [_cell(row["models"].get(model), row["reference"]) for model in BOTH]
        lines.append([row["client"], _versions(row), *cells])
    return markdown(lines)


def _versions(row: dict[str, Any]) -> str:
    """Of what the client itself is made of; or why it could not be installed."""
    left_out = next((names for begin, names in NOT_SHOWN.items() if row["client"].startswith(begin)), ())
    shown = [one for one in row.get("versions", "").split(", ") if one.split(" ")[0] not in left_out]
    return ", ".join(shown) if "error" not in row else f"not installed: {row['error']}"


def _cell(found: dict[str, Any] | None, reference: str) -> str:
    if found is None:
        return ""
    if "error" in found:
        return "fails"
    if reference not in PRECISIONS:
        return f"{found['difference']:.0e}" if found["difference"] else "equal"
    return f"cosine {found['cosine']:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=Path("clients"), help="where environments and exports go")
    parser.add_argument("--models", type=Path, default=Path("models"), help="model folders, for gte-small")
    keep_option_(parser)
    given = parser.parse_args()
    place = given.environments.absolute()
    place.mkdir(parents=True, exist_ok=True)
    sources: dict[str, str | Path] = {"minilm": "minilm"}
    if (given.models / "gte-small").is_dir():
        sources["gte-small"] = given.models / "gte-small"
    sources["classifier"] = classifier(place / "classifier-fp32")
    result: dict[str, Any] = {"texts": len(TEXTS), "rows": []}
    for row in measured(place, sources):
        result["rows"].append(row)
        if given.keep:  # after each client: some take minutes
            keep(__file__, result)
    print(table(result))


if __name__ == "__main__":
    main()
