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
OPEN = ("", "~", "null", "Null", "NULL")
"""What YAML writes where nothing is said."""


def card_fields(model: ModelToShip, base_model: str) -> CardFields:
    """License and languages of the source's card, the task, and the base model where its hub id is known."""
    told = _front_matter(model.home)
    return CardFields(
        base_model=base_model or None,
        license=_one_or_several(told.get("license")),
        license_name=_text(told.get("license_name")),
        license_link=_text(told.get("license_link")),
        language=_texts(told.get("language")),
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
        # Everything is text: YAML 1.1 reads the language of Norway, `no`, as false.
        told = yaml.load(head, Loader=yaml.BaseLoader) if mark and end else {}  # noqa: S506 - makes text, lists and mappings only
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _texts(value: object) -> list[str]:
    """One text or a list of them, without what is left open."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str) and one not in OPEN]


def _text(value: object) -> str | None:
    return next(iter(_texts(value)), None) if isinstance(value, str) else None


def _one_or_several(value: object) -> str | list[str] | None:
    found = _texts(value)
    return found[0] if len(found) == 1 else found or None
