"""The published JSON schemas of reports; `python -m tests.report_schemas` writes them to docs/schemas."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import quietformer.results
from quietformer.results.base import Report

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"


def kinds() -> dict[str, type[Report]]:
    """Every kind of report there is."""
    for module in pkgutil.iter_modules(quietformer.results.__path__):
        importlib.import_module(f"quietformer.results.{module.name}")
    return dict(sorted(Report.kinds.items()))


def schemas() -> dict[str, str]:
    """File name -> JSON schema, as a report is written."""
    return {
        f"{kind}.json": json.dumps(cls.model_json_schema(), indent=1, sort_keys=True) + "\n"
        for kind, cls in kinds().items()
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name, text in schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
