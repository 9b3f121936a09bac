"""Writes every table of README.md and docs/ that is made from kept results or from the code; measures nothing.

python -m experiments.tables [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import families, recipe_fields
from experiments.causal import larger_than_memory
from experiments.clients import compare as clients
from experiments.damage import fuzz, kills
from experiments.documents import between, markdown
from experiments.inspection import small_models, verdicts
from experiments.int8 import compare as int8
from experiments.int8 import profile as int8_profile
from experiments.provenance import ROOT
from experiments.quantization import minilm_and_small_models as quantization
from experiments.retrofit import balance_alpha, minilm, parts
from experiments.retrofit import keep as retrofits
from experiments.speed import tables as speed
from experiments.studies import causal_rows
from experiments.studies import keep as studies
from experiments.training import keep as runs
from quietformer.files import write_text
from quietformer.results.study import StudyReport
from quietformer.study.paper import paper

Draw = Callable[[Any], str]

TABLES: dict[tuple[str, str], tuple[str, Draw]] = {
    ("README.md", "int8"): ("int8/compare", int8.short),
    ("README.md", "retrofit"): ("retrofit/minilm", minilm.short),
    ("docs/damage.md", "fuzz"): ("damage/fuzz", fuzz.table),
    ("docs/damage.md", "kills"): ("damage/kills", kills.table),
    ("docs/clients.md", "clients"): ("clients/compare", clients.table),
    ("docs/inspect.md", "small-models"): ("inspection/small_models", small_models.table),
    ("docs/inspect.md", "verdicts"): ("inspection/verdicts", verdicts.table),
    ("docs/int8.md", "int8"): ("int8/compare", int8.table),
    ("docs/int8.md", "profile"): ("int8/profile", int8_profile.table),
    ("docs/language-models.md", "larger-than-memory"): ("causal/larger_than_memory", larger_than_memory.table),
    ("docs/retrofit.md", "ablation"): ("retrofit/parts", parts.table),
    ("docs/retrofit.md", "balance"): ("retrofit/balance_alpha", balance_alpha.table),
    ("docs/retrofit.md", "demo"): ("retrofit/demo", retrofits.table),
    ("docs/retrofit.md", "minilm"): ("retrofit/minilm", minilm.tables),
    ("docs/retrofit.md", "smol"): ("retrofit/smollm2", retrofits.table),
    ("docs/science.md", "causal-rows"): ("studies/causal_rows", causal_rows.table),
    ("docs/speed.md", "attention"): ("speed/attention", speed.attention),
    ("docs/speed.md", "model_steps"): ("speed/model_steps", speed.model_steps),
    ("docs/speed.md", "runtimes"): ("speed/runtimes", speed.runtimes),
    ("docs/speed.md", "startup"): ("speed/startup", speed.startup),
    ("docs/speed.md", "triton"): ("speed/triton_compile", speed.triton),
    ("docs/train.md", "runs"): ("training/runs", runs.table),
    ("docs/train.md", "training"): ("speed/training_steps", speed.training_steps),
}
"""Document and mark of every table; the result it is made from, and what draws it."""
PAGES: dict[str, tuple[str, Draw]] = {
    "docs/families.md": ("families", families.page),
    "docs/figures-quantize.md": ("quantization/minilm_and_small_models", quantization.page),
}
"""Documents that are written as a whole."""


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "experiments" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def documents() -> dict[str, str]:
    """Every document that has such a table, as it must read."""
    found = {place: draw(result(name)) for place, (name, draw) in PAGES.items()}
    found["docs/recipe-fields.md"] = recipe_fields.page()
    for (place, mark), content in tables().items():
        text = found.get(place) or (ROOT / place).read_text(encoding="utf-8")
        found[place] = between(text, mark, content)
    return found


def tables() -> dict[tuple[str, str], str]:
    found = {place: draw(result(name)) for place, (name, draw) in TABLES.items()}
    for path in sorted(studies.FINISHED.glob("*.json")):
        found["docs/science.md", path.stem] = studies.section(path.stem, StudyReport.read(path))
    overview = paper().overview()
    found["docs/paper.md", "paper"] = markdown([overview.columns, *overview.rows])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a document would change")
    check = parser.parse_args().check
    changed = {place: text for place, text in documents().items() if text != _read(ROOT / place)}
    for place, text in changed.items():
        print(f"{place} {'is out of date; run `make tables`' if check else 'written'}")
        if not check:
            write_text(ROOT / place, text)
    sys.exit(1 if check and changed else 0)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    main()
