"""What the card of an exported model takes over from the model it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from quietformer.deployment.shipment import ModelToShip
from quietformer.results.export import CardFields

PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}
"""How the name of a model's class ends, and what the hub calls its task."""


def card_fields(model: ModelToShip, base_model: str) -> CardFields:
    """License and languages of the source's card, the task, and the base model where its hub id is known."""
    told = _front_matter(model.home)
    languages = told.get("language") or []
    return CardFields(
        base_model=base_model or None,
        license=_text(told.get("license")),
        license_name=_text(told.get("license_name")),
        license_link=_text(told.get("license_link")),
        language=[one for one in (languages if isinstance(languages, list) else [languages]) if isinstance(one, str)],
        pipeline_tag=_pipeline(model),
    )


def _pipeline(model: ModelToShip) -> str | None:
    if model.embeds_text:
        return "sentence-similarity"
    if model.writes:
        return "automatic-speech-recognition" if model.kind == "audio" else "text2text-generation"
    if model.gives_one_score:
        return "text-ranking"
    found = next((task for ending, task in PIPELINES.items() if model.class_name.endswith(ending)), None)
    return "image-feature-extraction" if found is None and model.kind == "images" else found


def _front_matter(folder: Path | None) -> dict[str, Any]:
    """The metadata of a card; empty where there is none that can be read."""
    path = None if folder is None else folder / "README.md"
    if path is None or not path.is_file():
        return {}
    _, mark, rest = path.read_text(encoding="utf-8", errors="replace").partition("---\n")
    head, end, _ = rest.partition("\n---")
    try:
        told = yaml.safe_load(head) if mark and end else {}
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
