"""What the page of a study or of the paper needs: the report's own fields, and every number as text.

The page shows the same text as the terminal and the documents; only its charts read the numbers themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import JsonValue

from quietformer.config.study import BITS, bits_title
from quietformer.results import numbers
from quietformer.results.base import Record, Report
from quietformer.results.paper import PaperItem, PaperReport
from quietformer.results.study import StudyReport
from quietformer.results.study_table import (
    LEGEND,
    QUALITY,
    StudyRow,
    field_name,
    has_dead_rows,
    label,
    metric_name,
    metric_title,
    part_text,
    quantized_title,
    setting,
    value_text,
)
from quietformer.results.tables import Table
from quietformer.results.trial import Baselines, TrialRun, Values

Fields = dict[str, JsonValue]

COLUMNS = (*QUALITY, "infinity_norm", "kurtosis", "dead_rows", "gate_openness", *Baselines.model_fields, "seconds")
NAMED = 6
"""How many settings a note names."""
LONG = 140
"""Characters from which a sentence is set smaller."""
PAPER_KEYS = {"fp32": r"fp\d*", "infinity_norm": "inf", "kurtosis": "kurtosis"}
"""Columns of the table, and what the paper's data file calls them; a bit width has its own name."""
ABOUT = ("table", "finding")


def page_fields(report: Report) -> Fields:
    """A report as its page reads it."""
    if isinstance(report, StudyReport):
        return study_fields(report)
    return paper_fields(report) if isinstance(report, PaperReport) else _plain(report)


def _plain(record: Record) -> Fields:
    fields: Fields = record.model_dump(mode="json")
    return fields


# ---- a study
def study_fields(report: StudyReport) -> Fields:
    grid = report.study.grid
    rows: list[JsonValue] = [_plain(row) | _row_texts(report, row) for row in report.rows]
    trials: list[JsonValue] = [_plain(run) | _run_texts(report, run) for run in report.trials]
    return _plain(report) | {
        "rows": rows,
        "trials": trials,
        "metric": metric_title(report.metric),
        "quantized_title": quantized_title(report.rows),
        "fields": {field: field_name(field, list(grid)) for field in grid},
        "values": {field: [value_text(value, field) for value in values] for field, values in grid.items()},
        "points": {field: [part_text(field, value, list(grid)) for value in values] for field, values in grid.items()},
        "verdict": _verdict(report),
        "note": _note(report),
        "troubles": [
            *report.failures(),
            *(
                f"{setting(run.at) or report.study.recipe}, seed {run.seed}, has no real INT8: {run.result.real.error}"
                for run in report.trials
                if run.result is not None and run.result.real is not None and run.result.real.error is not None
            ),
        ],
    }


def _row_texts(report: StudyReport, row: StudyRow) -> Fields:
    """Its names, each column as text, what quantization changes, and what the paper reports."""
    texts: Fields = {}
    for column in COLUMNS:
        found = row.scaled(column)
        if found is None:
            continue
        text = row.text(column, report.metric, spread=row.runs > 1)
        mean, _, std = text.partition(" ± ")
        shown: Fields = {"mean": mean, "std": f"± {std}" if std else ""}
        if column in ("quantized", "real") and report.effect(row, column) != "unknown":
            shown |= {"effect": report.effect(row, column), "change": _change(report, row, column)}
        texts[column] = shown
    several = len({one.bits for one in report.rows}) > 1
    bits = f", {bits_title(row.bits)}" if several and BITS not in row.at else ""
    return {
        "label": label(row.at),
        "full_label": label(row.at) + bits,
        "setting": setting(row.at) or report.study.recipe,
        "texts": texts,
        "quoted": _quoted(row) if row.paper else None,
    }


def _change(report: StudyReport, row: StudyRow, column: str) -> str:
    before, after = row.fp32, row.spread(column)
    assert before is not None
    assert before.mean is not None
    assert after is not None
    return numbers.change(before.mean, after.mean, report.metric)


def _quoted(row: StudyRow) -> Fields:
    """What the paper reports of this setting: numbers by column, and the rest in words."""
    found: Fields = {}
    for column, pattern in (*PAPER_KEYS.items(), ("quantized", row.bits)):
        key = next((key for key in row.paper if re.fullmatch(pattern, key, re.IGNORECASE)), None)
        if key is not None:
            found[column] = numbers.quoted(row.paper[key])
    return {"texts": found, "about": _about(row.paper), "finding": _words(row.paper.get("finding"))}


def _about(paper: Values) -> str:
    measured = re.compile(r"fp\d*|inf|kurtosis|w\d+a\d+", re.IGNORECASE)
    others = {key: value for key, value in paper.items() if key not in ABOUT and not measured.fullmatch(key)}
    parts = [_words(value) if key == "method" else f"{_spaced(key)} {_words(value)}" for key, value in others.items()]
    place = f"({_spaced(_words(paper['table']))})" if paper.get("table") else ""
    return " ".join(filter(None, (", ".join(parts), place)))


def _words(value: JsonValue) -> str:
    if value is None:
        return ""
    return ", ".join(map(_words, value)) if isinstance(value, list) else numbers.quoted(value)


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _run_texts(report: StudyReport, run: TrialRun) -> Fields:
    found = run.result
    names: Fields = {"setting": setting(run.at) or report.study.recipe}
    if found is None:
        return names
    name, several = report.metric, report.study.measured.calibrations > 1
    quantized: Fields = {}
    for bits, spreads in found.quantized.items():
        spread = spreads[name]
        mean, std = (None, None) if spread is None else (spread.mean, spread.std)
        quantized[bits] = numbers.mean_and_std(mean, std, name, spread=several and mean is not None)
    texts: Fields = {
        "seconds": numbers.one_place(found.seconds),
        "fp32": numbers.mean_and_std(found.fp32[name], None, name),
        "quantized": quantized,
    }
    if found.real is not None:
        metrics = found.real.metrics
        texts["real"] = "not exported" if metrics is None else numbers.mean_and_std(metrics[name], None, name)
    for column in ("infinity_norm", "kurtosis"):
        value = None if found.outliers is None else getattr(found.outliers, column)
        if value is not None:
            texts[column] = numbers.mean_and_std(value, None)
    return names | {"texts": texts}


def _chosen(report: StudyReport) -> list[StudyRow]:
    """The rows that the verdict is about: those of W8A8, or else of the first bit width."""
    bits = list(dict.fromkeys(row.bits for row in report.rows))
    return [row for row in report.rows if row.bits == ("w8a8" if "w8a8" in bits else bits[0])]


def _verdict(report: StudyReport) -> Fields:
    """The sentence, how good the news is, and the numbers below it."""
    chosen, failed = _chosen(report), sum(run.failed is not None for run in report.trials)
    effects = {report.effect(row) for row in chosen}
    # Good news only where models have learned and no run is missing.
    good = (
        bool(effects & {"none", "little"})
        and not failed
        and not any(row.hardly_trained(report.better) for row in chosen)
    )
    severity = "quiet-model" if good else "worrying" if effects & {"none", "little", "harm"} else "broken"
    settings = len({setting(row.at) for row in report.rows})
    seeds, runs = len(report.study.seeds), len(report.trials)
    facts: list[JsonValue] = [
        [str(settings), "setting" if settings == 1 else "settings"],
        [str(seeds), "seed each" if seeds == 1 else "seeds each"],
        [str(runs), ("run" if runs == 1 else "runs") + (f", {failed} failed" if failed else "")],
    ]
    seconds = sum(run.result.seconds for run in report.trials if run.result is not None)
    if seconds:
        facts.append([numbers.duration(seconds), "of training, all runs"])
    if (best := _best(report, chosen)) is not None:
        unit = " %" if report.metric in numbers.PERCENT_METRICS else ""
        text = best.text("quantized", report.metric, spread=False) + unit
        name = setting(best.at) or report.study.recipe
        facts.append([text, f"best {metric_name(report.metric)} in {bits_title(best.bits)}: {name}"])
    sentence = report.sentence.replace(" -> ", " → ")
    return {"sentence": sentence, "long": len(sentence) > LONG, "severity": severity, "facts": facts}


def _best(report: StudyReport, rows: Sequence[StudyRow]) -> StudyRow | None:
    known = [(row.quantized.mean, row) for row in rows if row.quantized is not None and row.quantized.mean is not None]
    pick = max if report.better == "higher" else min
    return pick(known, key=lambda pair: pair[0])[1] if known else None


def _note(report: StudyReport) -> str:
    """The text below the table."""
    rows = [row for row in report.rows if row.runs]
    if not rows:
        return ""
    several = any(row.runs > 1 for row in rows)
    parts = ["Mean ± standard deviation over seeds." if several else "One run each."]
    if len(rows) > 1:
        parts.append("Bold: the best of its column.")
    parts.append("Below a quantized value: the change from fp32.")
    titles = ["largest value", "kurtosis", *(["dead rows, %"] if has_dead_rows(rows) else [])]
    columns = {"real": "real INT8", "gate_openness": "gate openness", "bigram_perplexity": "bigram"}
    columns["majority_accuracy"] = "largest class, %"
    titles += [title for column, title in columns.items() if any(row.spread(column) is not None for row in rows)]
    parts += [f"{title[:1].upper()}{title[1:]}: {LEGEND[title]}." for title in titles]
    results = [run.result for run in report.trials if run.result is not None]
    source = next((one.outliers.source for one in results if one.outliers is not None and one.outliers.source), None)
    if source:
        parts.append(f"Outliers are measured {source}.")
    poor = list(dict.fromkeys(setting(row.at) for row in rows if row.hardly_trained(report.better)))
    more = f" and {len(poor) - NAMED} more" if len(poor) > NAMED else ""
    if poor:
        parts.append(f"No better than that, so hardly trained: {'; '.join(poor[:NAMED])}{more}.")
    return " ".join(parts)


# ---- the paper
def paper_fields(report: PaperReport) -> Fields:
    items: list[JsonValue] = [_plain(item) | _item_texts(item) for item in report.items]
    return _plain(report) | {"items": items}


def _item_texts(item: PaperItem) -> Fields:
    heading = item.name.replace("table", "Table ").replace("figure", "Figure ")
    document = item.document
    ours = f"Ours: {document.holds}, in {document.place}." if document else f"Ours: {item.status}."
    papers: list[JsonValue] = [
        _table_texts(table.table()) | {"made": table.is_made_by_one, "told": table.is_finding} for table in item.paper
    ]
    studies: list[JsonValue] = [
        _table_texts(study.table()) | {"sentence": study.sentence, "command": study.command} for study in item.ours
    ]
    return {
        "heading": heading,
        "papers": papers,
        "studies": studies,
        "status": ours if document or not item.ours else "",
        "made_by": item.made_by,
    }


def _table_texts(table: Table) -> Fields:
    columns: list[JsonValue] = list(table.columns)
    rows: list[JsonValue] = [list(row) for row in table.rows]
    return {"title": table.title, "columns": columns, "rows": rows}
