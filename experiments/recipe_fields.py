"""docs/recipe-fields.md: every field of a recipe with its default and meaning, from the code. Nothing is measured."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from quietformer.config.attention import AttentionSpec
from quietformer.config.optimization import OptimizerRecipe, ScheduleRecipe
from quietformer.config.recipe import (
    AugmentRecipe,
    DataRecipe,
    ModelRecipe,
    QatRecipe,
    Recipe,
    Source,
    TeacherRecipe,
    TokenizerRecipe,
    TrainingRecipe,
    Variant,
)
from quietformer.config.regularizers import regularizers
from quietformer.config.spec_base import Spec

SECTIONS: tuple[type[Spec], ...] = (
    ModelRecipe, AttentionSpec, TokenizerRecipe, DataRecipe, Source, AugmentRecipe, OptimizerRecipe, ScheduleRecipe,
    TrainingRecipe, TeacherRecipe, QatRecipe, Variant,
)  # fmt: skip
EXAMPLE = """# mine.yaml: nothing that is not here is needed
name: mine
task: causal                    # masked, causal, pairs, images or distill
model:
  config: {model_type: gpt2, n_embd: 128, n_layer: 4, n_head: 4}
attention: {gate: "linear(pi_init=0.25)"}
data: {train: corpus.txt, length: 128}
optimizer: {learning_rate: 1e-3}
schedule: {warmup_steps: 100}
training: {steps: 2000, batch_size: 16}
"""


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value: Any = field.get_default(call_default_factory=True)  # type: ignore[call-arg]
    if isinstance(value, Spec):
        return "its defaults"
    if isinstance(value, tuple) and value and isinstance(value[0], Source):
        return f"`{value[0].name}`"
    return "none" if value in (None, "", (), {}) else f"`{list(value) if isinstance(value, tuple) else value}`"


def rows(spec: type[Spec]) -> str:
    head = "| field | default | |\n| --- | --- | --- |\n"
    return head + "".join(
        f"| `{name}` | {default_of(field)} | {field.description or ''} |\n" for name, field in spec.model_fields.items()
    )


def page() -> str:
    parts = [
        "# The fields of a recipe\n\nWritten by `make tables`. `quietformer recipes NAME` shows a recipe "
        "with all of them.\n",
        f"```yaml\n{EXAMPLE}```\n",
        f"## The recipe\n{rows(Recipe)}",
    ]
    for section in SECTIONS:
        name = section.title or "attention"
        parts.append(f"## {name}\n{section.__doc__}\n\n{rows(section)}")
    for name in regularizers:
        parts.append(f"## regularizers: {name}\n{regularizers[name].__doc__}\n\n{rows(regularizers[name])}")
    return "\n".join(parts)
