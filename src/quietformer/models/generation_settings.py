"""How a model generates, saved as it is: transformers refuses to save settings that it has read with a mere warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

GENERATION = "generation_config.json"


def save_with_settings(model: PreTrainedModel, folder: Path, **options: Any) -> None:
    """`save_pretrained`, also where the settings contradict each other, as a temperature without sampling: many published do."""
    settings = getattr(model, "generation_config", None)
    if settings is None or _consistent(settings):
        model.save_pretrained(folder, **options)
        return
    model.generation_config = type(settings)()
    try:
        model.save_pretrained(folder, **options)
    finally:
        model.generation_config = settings
    (folder / GENERATION).write_text(settings.to_json_string(), encoding="utf-8")


def _consistent(settings: Any) -> bool:
    try:
        settings.validate(strict=True)
    except (ValueError, TypeError):
        return False
    return True
