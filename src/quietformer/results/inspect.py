"""The report of `inspect`: outliers by tensor, dimension, position, token and head, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from quietformer.results import numbers
from quietformer.results.annihilation import AnnihilatedTensor, annihilated_tables
from quietformer.results.base import Number, Record, Report
from quietformer.results.data import DataInfo
from quietformer.results.model import ModelInfo
from quietformer.results.tables import Table

Severity = Literal["broken", "worrying", "quiet"]


class Place(Record):
    """One tensor of one layer."""

    site: str
    layer: int


class TensorMetrics(Place):
    """Range and tails of one tensor over the data."""

    infinity_norm: float
    kurtosis: float | None
    std: float
    min: float
    max: float
    percentiles: dict[str, float]
    outliers: int
    outlier_share: float
    int8_bits_left: float

    @property
    def largest(self) -> float:
        return max(abs(self.min), abs(self.max))


class Headline(Record):
    """The two numbers that stand for a model, as the paper defines them."""

    source: str | None = None
    infinity_site: str
    infinity_norm: float | None
    kurtosis_sites: list[str]
    kurtosis: float | None


class OutlierDimension(Record):
    dimension: int
    count: int
    largest: float
    head: int | None


class OutlierToken(Record):
    token: str
    id: int
    count: int


class TensorOutliers(Place):
    """Where the outliers of one tensor sit."""

    total: int
    few_dimensions: list[int]
    dimensions: list[OutlierDimension]
    positions: list[int]
    tokens: list[OutlierToken]
    delimiter_share: float | None


class HeadMetrics(Record):
    """What the heads of one layer do, one number per head."""

    layer: int
    no_op: list[float]
    sink: list[float]
    entropy: list[float]
    zeros: list[float]
    ones: list[float]
    zero_rows: list[float]
    gate: list[float] | None = None


class PackedMatrix(Record):
    """A matrix as bytes: value = (byte - zero) * step."""

    rows: int
    columns: int
    step: float
    zero: int
    data: str


class HeadPicture(Record):
    """Probabilities, values, their product and the gate of one head on one sequence."""

    P: PackedMatrix
    V: PackedMatrix
    PV: PackedMatrix
    pi: list[float] | None = None


class LayerPicture(Record):
    sequence: int
    layer: int
    heads: list[HeadPicture]


class SequencePicture(Record):
    """A sequence that was drawn: its tokens, or the image in grey."""

    tokens: list[str] | None = None
    image: PackedMatrix | None = None
    length: int | None


class PatchPicture(Record):
    """Attention and outliers by image patch."""

    layer: int
    side: int
    extra_tokens: int
    attention: list[float]
    outliers: list[float]
    value_norm_outlier_patches: float | None
    value_norm_other_patches: float | None


class Pictures(Record):
    sequences: list[SequencePicture]
    attention: list[LayerPicture]
    patches: list[PatchPicture] | None = None


class Verdict(Record):
    """What the metrics mean: a sentence, the claims behind it, and what to do next."""

    severity: Severity
    sentence: str
    claims: list[str]
    next_steps: list[str]
    ranked: list[Place]


class TouchedDimensions(Place):
    dimensions: list[int]


class Intervention(Record):
    """What a model loses when outliers are set to zero or to their mean."""

    what: str
    measure: str
    before: Number
    after: Number
    touched: list[TouchedDimensions]


class CheckpointHeadline(Headline):
    """One of several checkpoints of a run."""

    model: str
    severity: Severity


class OutlierMetrics(Record):
    """What was measured of a model's outliers, before anything is concluded from it."""

    model: ModelInfo
    data: DataInfo
    headline: Headline
    sites: list[TensorMetrics]
    outliers: list[TensorOutliers]
    heads: list[HeadMetrics]
    head_measures: dict[str, str]
    pictures: Pictures

    def tensor(self, site: str, layer: int) -> TensorMetrics:
        """The metrics of one tensor."""
        return next(row for row in self.sites if (row.site, row.layer) == (site, layer))

    def extremes(self, site: str = "ffn_output") -> tuple[float | None, float | None]:
        """The largest magnitude of a tensor in any layer, and the largest kurtosis; None if it was not measured."""
        rows = [row for row in self.sites if row.site == site]
        return max((row.largest for row in rows), default=None), largest_kurtosis(rows)


def largest_kurtosis(rows: Sequence[TensorMetrics]) -> float | None:
    """None if no tensor has one; a constant tensor has none."""
    return max((row.kurtosis for row in rows if row.kurtosis is not None), default=None)


class InspectReport(Report, OutlierMetrics):
    """Outliers of a model, and what INT8 would make of them."""

    kind: Literal["inspect"] = "inspect"
    verdict: Verdict
    annihilated: list[AnnihilatedTensor] | None = None
    interventions: list[Intervention] = Field(default_factory=list)
    growth: list[CheckpointHeadline] = Field(default_factory=list)

    def sentences(self) -> list[str]:
        found = self.verdict
        lines = [self.model.title, found.sentence, *(f"  {claim}" for claim in found.claims), "Next:"]
        lines += [f"  {step}" for step in found.next_steps]
        lines += [
            f"  {row.what}: {row.measure} {' -> '.join(numbers.metric(x, row.measure) for x in (row.before, row.after))}"
            for row in self.interventions
        ]
        lines += [
            f"  {row.model}: infinity norm {numbers.norm(row.infinity_norm)}, kurtosis {numbers.kurtosis(row.kurtosis)}"
            for row in self.growth
        ]
        return lines

    def tables(self) -> list[Table]:
        rows = [self.tensor(place.site, place.layer) for place in self.verdict.ranked[:8]]
        return [
            Table(
                "Tensors that INT8 hurts most",
                ["tensor", "layer", "max |x|", "kurtosis", "past 6 sigma", "bits left"],
                [
                    [
                        row.site, str(row.layer), numbers.norm(row.largest), numbers.kurtosis(row.kurtosis),
                        numbers.whole(row.outliers), numbers.one_place(row.int8_bits_left),
                    ]
                    for row in rows
                ],
            ),
            *annihilated_tables(self.annihilated),
        ]  # fmt: skip
