"""Whether the row that sees one key is what keeps the outliers of clipped causal models: it may do nothing here, and does.

    python -m tools.lone_row DIR --json results/lone_row.json

Clipped softmax by the keys a row sees, as in the study causal-clipping, but the row of one key gives it no weight, where clipping
alone leaves it all of it. An experiment, not a part of the library; DIR takes the runs, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.study_tables import slim
from torch import Tensor

from quietformer.attention.clipped import ClippedSoftmax, ClippedSoftmaxNormalizer, count_keys
from quietformer.attention.normalizer import Normalizer
from quietformer.files import check_place, write_json
from quietformer.specs import HeadGeometry, normalizers
from quietformer.study.design import find_study, read_study
from quietformer.study.study import run_study


class LoneRowNormalizer(ClippedSoftmaxNormalizer):
    """Clipped, and nothing for a row that has no choice."""

    def forward(self, scores_BHQK: Tensor, visible: Tensor | None = None) -> Tensor:
        weights_BHQK = super().forward(scores_BHQK, visible)
        return weights_BHQK if visible is None else weights_BHQK * (count_keys(visible, "row") > 1)

    def attend(self, *tensors: Tensor, **how: object) -> None:
        """The fast ways know nothing of it."""


@normalizers.register("clipped_lone_row")
class LoneRow(ClippedSoftmax):
    def build(self, geometry: HeadGeometry) -> Normalizer:
        return LoneRowNormalizer(self)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    check_place(arguments.json)
    asked = read_study(find_study("causal-clipping"))
    study = asked.model_copy(
        update={
            "name": "lone-row",
            "variants": {"by-row-lone": {"attention.normalizer": "clipped_lone_row(alpha=2, keys='row')"}},
            "grid": {"variant": ["by-row-lone"]},
            "measures": asked.measures.model_copy(update={"real": False, "pages": False}),
        }
    )
    figures = run_study(study, arguments.out, say=print, tell=lambda what, done, total: None)
    write_json(arguments.json, slim(figures))
    print(figures["sentence"])


if __name__ == "__main__":
    main()
