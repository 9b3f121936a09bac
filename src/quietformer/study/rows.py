"""The runs of a study as rows, one per setting and bit width, and what they say in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quietformer.config.study import BITS, EXPORTED, Study, bits_title
from quietformer.results.quality import Better, Spread
from quietformer.results.study_table import StudyRow, label
from quietformer.results.trial import Baselines, TrialResult, TrialRun, Values

Pick = Callable[[TrialResult], float | None]

NAMED = 4
"""How many settings of a kind a sentence names."""

VERBS = {"broken": "breaks", "harm": "costs quality", "little": "costs a little", "none": "costs next to nothing"}


def study_rows(study: Study, runs: Sequence[TrialRun]) -> list[StudyRow]:
    """Every point of the grid over its seeds; a point of which every run failed has no values."""
    rows = []
    for at in _points(runs):
        of_point = [run for run in runs if run.at == at]
        results = [(run.seed, run.result) for run in of_point if run.result is not None]
        failed = [f"seed {run.seed}: {run.failed}" for run in of_point if run.failed is not None]
        for bits in study.measured.bits:
            place: Values = {field: at[field] if field != BITS else bits for field in study.grid}
            row = StudyRow(at=place, bits=bits, runs=len(results), failed=failed)
            rows.append(_with_values(row, results) if results else row)
    return rows


def _points(runs: Sequence[TrialRun]) -> list[Values]:
    found: list[Values] = []
    for run in runs:
        if run.at not in found:
            found.append(run.at)
    return found


def _with_values(row: StudyRow, by_seed: list[tuple[int, TrialResult]]) -> StudyRow:
    """The row with mean and standard deviation over the runs that finished."""
    results, bits = [result for _, result in by_seed], row.bits
    first = results[0]
    primary = first.primary

    def over_seeds(pick: Pick) -> Spread | None:
        values = [pick(result) for result in results]
        return None if all(value is None for value in values) else Spread.of(values)

    def quantized(result: TrialResult) -> Spread | None:
        return result.quantized[bits][primary]

    def outliers(name: str) -> Spread | None:
        return over_seeds(lambda result: None if result.outliers is None else getattr(result.outliers, name))

    errors = [(seed, result.real.error) for seed, result in by_seed if result.real is not None]
    known = {
        "attention": first.attention,
        "fp32": Spread.of([result.fp32[primary] for result in results]),
        "quantized": Spread.of([None if (found := quantized(result)) is None else found.mean for result in results]),
        "calibrations_std": over_seeds(lambda result: None if (found := quantized(result)) is None else found.std),
        "real": _real(results, primary) if bits == EXPORTED else None,
        "not_exported": [f"seed {seed}: {error}" for seed, error in errors if error is not None],
        "infinity_norm": outliers("infinity_norm"),
        "kurtosis": outliers("kurtosis"),
        "dead_rows": over_seeds(lambda result: result.last("dead_rows")),
        "most_dead_rows": over_seeds(lambda result: max(result.points("dead_rows"), default=None)),
        "gate_openness": over_seeds(lambda result: result.last("gate_openness")),
        "baselines": Baselines[Spread](
            **{
                name: Spread.of([getattr(result.baselines, name) for result in results])
                for name in Baselines.model_fields
                if name in first.baselines.model_fields_set
            }
        ),
        "seconds": over_seeds(lambda result: result.seconds),
        "paper": first.paper,
    }
    return row.model_copy(update={name: value for name, value in known.items() if value is not None})


def _real(results: list[TrialResult], primary: str) -> Spread | None:
    """Over the runs that were exported; a graph that cannot be exported is not a broken model."""
    exported = [
        result.real.metrics for result in results if result.real is not None and result.real.metrics is not None
    ]
    return Spread.of([metrics[primary] for metrics in exported]) if exported else None


def in_words(rows: Sequence[StudyRow], primary: str, better: Better | None) -> str:
    """`W8A8 breaks: vanilla (151.2 -> 212.0); costs next to nothing: gated (152.1 -> 152.3).`"""
    bits = {row.bits for row in rows}
    first = next(iter(row.bits for row in rows), "")
    chosen = [row for row in rows if row.bits == ("w8a8" if "w8a8" in bits else first)]
    parts = []
    for kind, verb in VERBS.items():
        hit = [row for row in chosen if row.effect(better) == kind]
        if hit:
            named = ", ".join(f"{label(row.at)} ({_change(row, primary)})" for row in hit[:NAMED])
            more = f" and {len(hit) - NAMED} more" if len(hit) > NAMED else ""
            parts.append(f"{verb}: {named}{more}")
    if lost := [row for row in chosen if row.runs and row.effect(better) == "unknown"]:
        parts.append(f"cannot be judged, since fp32 gives no number: {_named(lost)}")
    if not parts:
        return "No run finished."
    sentences = [f"{bits_title(chosen[0].bits)} {'; '.join(parts)}."]
    if poor := [row for row in chosen if row.hardly_trained(better)]:
        sentences.append(f"Hardly trained, so this says little of quantization: {_named(poor)}.")
    if failed := [row for row in chosen if row.failed]:
        sentences.append(f"Runs failed: {_named(failed)}.")
    return " ".join(sentences)


def _named(rows: Sequence[StudyRow]) -> str:
    names = list(dict.fromkeys(label(row.at) for row in rows))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _change(row: StudyRow, primary: str) -> str:
    return " -> ".join(row.text(column, primary, spread=False) for column in ("fp32", "quantized"))
