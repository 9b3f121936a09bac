"""Fields of a report as the report they make, so that every page in the tests is one a user could get."""

from __future__ import annotations

from typing import Any

from quietformer.results.base import Report


def as_report(given: Report | dict[str, Any]) -> Report:
    return given if isinstance(given, Report) else Report.from_fields({"version": 2} | given)
