"""Loads an exported folder in one client and writes what it gives for some texts; runs in that client's own environment.

python load_in_client.py CLIENT FOLDER TEXTS.json OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CLASSIFIER = "ForSequenceClassification"


def is_classifier(folder: str) -> bool:
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return str(config["architectures"][0]).endswith(CLASSIFIER)


def ours(folder: str, texts: list[str], runtime: Any = "onnxruntime") -> Any:
    import quietformer as qf

    model = qf.OnnxModel(folder, runtime=runtime)
    return model(texts) if is_classifier(folder) else model.encode(texts)


def ours_in_openvino(folder: str, texts: list[str]) -> Any:
    return ours(folder, texts, "openvino")


def ours_as_module(folder: str, texts: list[str], file: str | None = None) -> Any:
    from sentence_transformers import SentenceTransformer

    import quietformer as qf

    return SentenceTransformer(modules=[qf.OnnxModel(folder, file=file)], device="cpu").encode(texts)


def ours_in_fp32(folder: str, texts: list[str]) -> Any:
    return ours_as_module(folder, texts, "onnx/model.onnx")


def original(folder: str, texts: list[str]) -> Any:
    """The model before it was exported, in torch."""
    if is_classifier(folder):
        return compressed_tensors(folder, texts)  # transformers, which loads what is not compressed too
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu", local_files_only=True).encode(texts)


def sentence_transformers_onnx(folder: str, texts: list[str]) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, backend="onnx", device="cpu", local_files_only=True).encode(texts)


def sentence_transformers_openvino(folder: str, texts: list[str]) -> Any:
    from sentence_transformers import SentenceTransformer

    named = {"file_name": "openvino/openvino_model.xml"}
    model = SentenceTransformer(folder, backend="openvino", model_kwargs=named, local_files_only=True)
    return model.encode(texts)


def optimum(folder: str, texts: list[str], library: str = "onnxruntime", prefix: str = "ORT", **place: str) -> Any:
    import importlib

    import torch
    from transformers import AutoTokenizer

    kind = "SequenceClassification" if is_classifier(folder) else "FeatureExtraction"
    module = importlib.import_module(f"optimum.{library}")
    model = getattr(module, f"{prefix}ModelFor{kind}").from_pretrained(folder, **place)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        result = model(**batch)
    return result.logits if is_classifier(folder) else pooled(result.last_hidden_state, batch["attention_mask"], folder)


def optimum_openvino(folder: str, texts: list[str]) -> Any:
    return optimum(folder, texts, "intel", "OV", subfolder="openvino")


def pooled(states: Any, mask: Any, folder: str) -> Any:
    """By hand, as users of these clients do."""
    import torch

    mask = mask[..., None]
    mean = (states * mask).sum(1) / mask.sum(1)
    normalized = "Normalize" in (Path(folder) / "modules.json").read_text(encoding="utf-8")
    return torch.nn.functional.normalize(mean, dim=-1) if normalized else mean


def fastembed(folder: str, texts: list[str]) -> Any:
    import numpy as np
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    normalized = "Normalize" in (Path(folder) / "modules.json").read_text(encoding="utf-8")
    TextEmbedding.add_custom_model(
        model="mine", pooling=PoolingType.MEAN, normalization=normalized, sources=ModelSource(hf="mine"), dim=384,
        model_file="model.onnx",
    )  # fmt: skip
    return np.stack(list(TextEmbedding("mine", specific_model_path=folder).embed(texts)))


def openvino(folder: str, texts: list[str]) -> Any:
    import openvino
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_padding()
    tokenizer.enable_truncation(256)
    rows = tokenizer.encode_batch(texts)
    arrays = {
        "input_ids": [row.ids for row in rows],
        "attention_mask": [row.attention_mask for row in rows],
        "token_type_ids": [row.type_ids for row in rows],
    }
    model = openvino.Core().compile_model(f"{folder}/openvino/openvino_model.xml", "CPU")
    named = [value.any_name for value in model.inputs]
    output = torch.from_numpy(model({name: torch.tensor(arrays[name]).numpy() for name in named})[0])
    return output if is_classifier(folder) else pooled(output, torch.tensor(arrays["attention_mask"]), folder)


def compressed_tensors(folder: str, texts: list[str]) -> Any:
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    kind: Any = AutoModelForSequenceClassification if is_classifier(folder) else AutoModel
    model = kind.from_pretrained(folder, local_files_only=True).eval()
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        result = model(**batch)
    return result.logits if is_classifier(folder) else pooled(result.last_hidden_state, batch["attention_mask"], folder)


LOADERS = {
    one.__name__.replace("_", "-"): one
    for one in (
        ours, ours_in_openvino, ours_as_module, ours_in_fp32, original, sentence_transformers_onnx,
        sentence_transformers_openvino, optimum, optimum_openvino, fastembed, openvino, compressed_tensors,
    )
}  # fmt: skip


def main() -> None:
    client, folder, texts, out = sys.argv[1:]
    rows = LOADERS[client](folder, json.loads(Path(texts).read_text(encoding="utf-8")))
    Path(out).write_text(json.dumps([[float(x) for x in row] for row in rows]), encoding="utf-8")


if __name__ == "__main__":
    main()
