"""The files by which sentence-transformers, and clients that read them too, know how a model makes embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping

from quietformer.deployment.shipment import ModelToShip, Shipment, write_json
from quietformer.files import read_json
from quietformer.models.sentence_folder import FLAGS, LENGTHS, MODULES, POOLING, PROMPTS
from quietformer.results.export import RuntimeName

SENTENCE_FILES = (MODULES, "1_Pooling", PROMPTS, LENGTHS[0])
TYPES = "sentence_transformers.models"
"""Where every version of sentence-transformers has its modules."""


def embedding_refusal(model: ModelToShip) -> str:
    """Why a client that embeds texts has no use for a model; empty if it has."""
    if model.unknown_kind:
        return f"modules.json describes a {model.unknown_kind}, which is not known here"
    if model.settings is None:
        return f"it makes embeddings of texts, and a {model.class_name} does not"
    if model.settings.other_modules:
        return f"the {model.settings.other_modules[0]} module of this model is not part of the exported graph"
    return "" if model.settings.pooling else "the model has no Pooling module, so it makes no embeddings of texts"


def unknown_pooling(model: ModelToShip, known: Mapping[str, str]) -> str:
    """Why a client that pools in these ways alone cannot make a model's embeddings; empty if it can."""
    if why := embedding_refusal(model):
        return why
    assert model.settings is not None
    modes = model.settings.pooling
    if len(modes) == 1 and modes[0] in known:
        return ""
    return f"it cannot pool by {' and '.join(modes)}; it knows {', '.join(known)}"


def text_refusal(model: ModelToShip) -> str:
    """Why a client that reads the tokenizer alone would give a model other texts or tokens than it wants; empty if not."""
    if model.settings is None:
        return ""
    if not model.settings.include_prompt:
        return "it pools the tokens of prompts too, and this model does not (include_prompt is false)"
    if model.settings.do_lower_case and not _writes_lower_case(model):
        return "it does not read do_lower_case, and the tokenizer of this model keeps capitals"
    return ""


def _writes_lower_case(model: ModelToShip) -> bool:
    """Whether tokenizer.json says so."""
    path = None if model.origin is None else model.origin / "tokenizer.json"
    told = read_json(path, "") if path is not None and path.is_file() else {}
    found = told.get("normalizer") if isinstance(told, dict) else None
    steps = found.get("normalizers") if isinstance(found, dict) and found.get("type") == "Sequence" else [found]
    return any(
        isinstance(step, dict) and (step.get("type") == "Lowercase" or step.get("lowercase") is True)
        for step in (steps if isinstance(steps, list) else [])
    )


def prompt_note(shipment: Shipment) -> str:
    """What prompts a client that puts none before texts leaves to the user; empty where there are none."""
    if not shipment.model.embeds_text:
        return ""
    prompts = {name: text for name, text in shipment.settings.prompts.items() if text}
    if not prompts:
        return ""
    listed = ", ".join(f"{json.dumps(text, ensure_ascii=False)} ({name})" for name, text in prompts.items())
    default = shipment.settings.default_prompt_name
    first = f" Without a choice it is that of {default}." if default in prompts else ""
    return f"It puts no prompt before texts; write it there yourself: {listed}.{first}"


def pooling_note(shipment: Shipment, runtime: RuntimeName = "onnxruntime") -> str:
    """How somebody who runs the graph by hand makes embeddings of its output; empty where it gives none."""
    if embedding_refusal(shipment.model):
        return ""
    if shipment.details.pooled and runtime == "onnxruntime":
        return "The second output, `sentence_embedding`, is pooled and normalized as the model wants it."
    scaled = ", normalized to length 1" if shipment.settings.normalize else ""
    by_hand = (
        f"The output is one vector a token. The embedding of a text pools those whose mask is 1 by "
        f"{' and '.join(shipment.settings.pooling)}{scaled}"
    )
    if runtime == "openvino" or not shipment.settings.include_prompt:
        return f"{by_hand}."
    return f"{by_hand}; `quietformer export --pooled` puts that into the graph."


def write_sentence_files(shipment: Shipment) -> None:
    """modules.json, the pooling module's config, the longest text and the prompts; our own runtime reads them too."""
    folder, settings = shipment.folder, shipment.settings
    # Modules that the graph does not compute are named too: what loads the folder must not leave them out in silence.
    kinds = ["Transformer", *["Pooling"] * bool(settings.pooling), *settings.other_modules]
    kinds += ["Normalize"] * settings.normalize
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": kind if "." in kind else f"{TYPES}.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    write_json(folder / MODULES, modules)
    flags = {flag: mode in settings.pooling for flag, mode in FLAGS.items()}
    size = {"word_embedding_dimension": shipment.model.hidden_size}
    write_json(folder / POOLING, {**size, **flags, "include_prompt": settings.include_prompt})
    write_json(
        folder / LENGTHS[0], {"max_seq_length": settings.max_seq_length, "do_lower_case": settings.do_lower_case}
    )
    prompts = {"prompts": dict(settings.prompts), "default_prompt_name": settings.default_prompt_name}
    write_json(folder / PROMPTS, {**prompts, "similarity_fn_name": settings.similarity})
