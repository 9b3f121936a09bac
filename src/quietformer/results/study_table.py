"""The runs of a study as the table that papers print: one row per setting, mean and standard deviation over seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from pydantic import Field, JsonValue

from quietformer.config.study import BITS, VARIANT, bits_title, short
from quietformer.results import numbers
from quietformer.results.base import Record
from quietformer.results.numbers import PERCENT_METRICS
from quietformer.results.quality import Better, Spread, effect
from quietformer.results.tables import Table
from quietformer.results.trial import Baselines, Values

QUALITY = ("fp32", "quantized", "real")
"""Columns that hold the primary metric."""
SCALES = {"dead_rows": 100.0, "majority_accuracy": 100.0, "seconds": 1 / 60}
"""What a table multiplies a value by: shares are shown in per cent, seconds in minutes."""


class StudyRow(Record):
    """One setting at one bit width; a setting of which every run failed has no values."""

    at: Values = Field(description="its point of the grid")
    bits: str
    runs: int = Field(description="runs that finished")
    failed: list[str] = Field(default_factory=list, description="random seed and reason of each run that failed")
    attention: str | None = None
    fp32: Spread | None = None
    quantized: Spread | None = None
    calibrations_std: Spread | None = Field(
        default=None,
        description="standard deviation over calibrations of one model: how much of a difference is chance",
    )
    real: Spread | None = None
    not_exported: list[str] = Field(default_factory=list)
    infinity_norm: Spread | None = None
    kurtosis: Spread | None = None
    dead_rows: Spread | None = None
    most_dead_rows: Spread | None = None
    gate_openness: Spread | None = None
    baselines: Baselines[Spread] = Field(default_factory=Baselines[Spread])
    seconds: Spread | None = None
    paper: Values = Field(default_factory=dict, description="what the paper reports of this setting, at its own size")

    def spread(self, column: str) -> Spread | None:
        """A column of the table; None where it was not measured."""
        home = self.baselines if column in Baselines.model_fields else self
        found: Spread | None = getattr(home, column)
        return found

    def scaled(self, column: str) -> Spread | None:
        """The same in the unit that the table shows it in; the primary metric is scaled where it is formatted."""
        found = self.spread(column)
        return None if found is None else found.times(SCALES.get(column, 1.0))

    def text(self, column: str, primary: str, *, spread: bool | None = None) -> str:
        """`23.10 ± 0.20`; a single run has no deviation, and a zero would claim that seeds agree."""
        found = self.scaled(column)
        if found is None:
            return numbers.MISSING
        name = primary if column in QUALITY else ""
        return numbers.mean_and_std(found.mean, found.std, name, spread=self.runs > 1 if spread is None else spread)

    def effect(self, better: Better | None, column: str = "quantized") -> str:
        """What quantization does to this setting: `none`, `little`, `harm`, `broken`, or `unknown`."""
        after = self.spread(column)
        if self.fp32 is None or after is None or better is None:
            return "unknown"
        return effect(self.fp32.mean, after.mean, better)

    def hardly_trained(self, better: Better | None) -> bool:
        """Whether it is no better than counting pairs of tokens, or than always giving the most frequent answer."""
        mean = None if self.fp32 is None else self.fp32.mean
        if mean is None:
            return False
        known = [baseline.mean for baseline in self.baselines.values() if baseline.mean is not None]
        return any(mean >= other if better == "lower" else mean <= other for other in known)


def value_text(value: JsonValue, field: str = "") -> str:
    """A value of a grid as people write it."""
    text = "none" if value is None else json.dumps(value) if isinstance(value, (dict, list)) else str(value)
    return bits_title(text) if field == BITS else text


def label(at: Values) -> str:
    """`gamma -0.03, zeta 1.0`; a variant by its name alone, and fields of the same last name in full."""
    return ", ".join(part_text(field, value, at) for field, value in at.items())


def part_text(field: str, value: JsonValue, fields: Sequence[str] | Values) -> str:
    """One field of a point beside the others."""
    if field in (VARIANT, BITS):
        return value_text(value, field)
    return f"{field_name(field, fields)} {value_text(value)}"


def field_name(field: str, fields: Sequence[str] | Values) -> str:
    """`gamma` of `attention.normalizer.gamma`, unless another field has the same last name."""
    return field if sum(short(other) == short(field) for other in fields) > 1 else short(field)


def setting(at: Values) -> str:
    """The label without the bits, which need no training of their own."""
    return label({field: value for field, value in at.items() if field != BITS})


def metric_name(primary: str) -> str:
    """A metric as people call it."""
    return {"top1": "accuracy"}.get(primary, primary)


def metric_title(primary: str) -> str:
    return metric_name(primary) + (", %" if primary in PERCENT_METRICS else "")


def quantized_title(rows: Sequence[StudyRow]) -> str:
    """`W8A8`, or `quantized` if there are several bit widths."""
    bits = dict.fromkeys(bits_title(row.bits) for row in rows)
    return next(iter(bits)) if len(bits) == 1 else "quantized"


Cell = Callable[[StudyRow], str]


def columns(rows: Sequence[StudyRow], primary: str) -> list[tuple[str, Cell]]:
    """Titles, and what to print under each, of what the rows have; the first has no title."""

    def cell(column: str, spread: bool | None = None) -> Cell:
        return lambda row: row.text(column, primary, spread=spread)

    def measured(column: str) -> bool:
        return any(row.spread(column) is not None for row in rows)

    found: list[tuple[str, Cell]] = [("", lambda row: label(row.at))]
    if len({row.bits for row in rows}) > 1 and not any(BITS in row.at for row in rows):
        found.append((BITS, lambda row: bits_title(row.bits)))
    found += [(metric_title(primary), cell("fp32")), (quantized_title(rows), cell("quantized"))]
    if measured("real"):
        found.append(("real INT8", cell("real")))
    found += [("largest value", cell("infinity_norm")), ("kurtosis", cell("kurtosis"))]
    if has_dead_rows(rows):
        found.append(("dead rows, %", cell("dead_rows", False)))
    for column, title in (
        ("gate_openness", "gate openness"),
        ("bigram_perplexity", "bigram"),
        ("majority_accuracy", "largest class, %"),
    ):
        if measured(column):
            found.append((title, cell(column, False)))
    found += [("minutes", cell("seconds", False)), ("runs", _counted)]
    return found


def has_dead_rows(rows: Sequence[StudyRow]) -> bool:
    """Whether any row of attention gave no weight to anything at some step."""
    return any(row.most_dead_rows is not None and row.most_dead_rows.mean for row in rows)


def _counted(row: StudyRow) -> str:
    return str(row.runs) + (f" ({len(row.failed)} failed)" if row.failed else "")


def study_table(title: str, rows: Sequence[StudyRow], primary: str) -> Table:
    chosen = columns(rows, primary)
    return Table(title, [name for name, _ in chosen], [[cell(row) for _, cell in chosen] for row in rows])


LEGEND = {
    "largest value": "of an activation; a few huge values stretch the INT8 scale until the rest rounds to zero; lower is better",
    "kurtosis": "how far outliers stick out of an activation; 3 for a normal distribution; lower is better",
    "real INT8": "the exported model in ONNX Runtime",
    "dead rows, %": "rows of attention that give no weight to anything, at the last step they were counted",
    "gate openness": "1 lets a head through unchanged, 0 shuts it; at the last step it was measured",
    "bigram": "the perplexity of counting which token follows which",
    "largest class, %": "the accuracy of always answering the most frequent class",
}


def legend(rows: Sequence[StudyRow], primary: str) -> list[str]:
    """What the columns mean that people may not know."""
    return [f"{title}: {LEGEND[title]}" for title, _ in columns(rows, primary) if title in LEGEND]


def failures(rows: Sequence[StudyRow]) -> list[str]:
    """What failed, each run once: its reason is in every row of its setting, one for each bit width."""
    return list(dict.fromkeys(f"{setting(row.at)}, {text}" for row in rows for text in row.failed))


def not_exported(rows: Sequence[StudyRow]) -> list[str]:
    """Runs that have no real INT8, and why."""
    return list(dict.fromkeys(f"{setting(row.at)}, not exported, {text}" for row in rows for text in row.not_exported))
