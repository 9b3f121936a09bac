"""Every table and figure of the paper: what it shows, where its figures are kept, and what makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Item:
    """One table or figure; runs that quote its figures in their recipes need not be named here."""

    name: str
    section: str
    shows: str
    key: str = ""
    """Where figures.json has its figures; nothing if it has none."""
    unit: str = ""
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Recipes with variants that belong to it without quoting its figures."""
    seeds: int = 0
    """Trained so often by `compare`; 0 where `compare` is not what makes it."""
    options: str = ""
    then: tuple[str, ...] = ()
    """Commands after those of `compare`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Studies for `sweep`, as YAML by the name of their file."""
    note: str = ""
    axes: frozenset[str] = frozenset()
    """What a study of another size may vary to stand beside it; nothing: only its own recipes do."""
    columns: frozenset[str] = frozenset()
    """What its rows differ in besides; a study may vary it or not."""
    document: str = ""
    """Where ours is, if it is no study."""


MNLI = """\
recipe: paper/bert-mnli
grid: {data.length: [128]}
measures: {pages: true}
"""

ALPHA = """\
recipe: paper/bert-6l
grid:
  variant: [vanilla, alpha-0.25, alpha-0.5, alpha-1, alpha-2, alpha-4, alpha-8]
  data.length: [32, 64, 128, 192, 256]
seeds: [0, 1]
"""

VARIANTS, STRETCH = frozenset({"variant"}), frozenset({"gamma", "zeta"})

OPT_RANGES = (
    "For OPT the paper takes MSE ranges of weights and the best of several estimators for activations; compare takes "
    "min-max, so each run is quantized once more. RUN is a folder under runs, FILE a text file."
)

PAIRS = "The sweep leaves inspect.html in its run folder: outliers and heads, over pairs of MNLI-m."

TEXTS = "FILE holds sentences of MNLI-m, one a line; inspect joins them to running text."

PICTURES, STEPS = "docs/inspect.md", "docs/speed.md"

DOCUMENTS = {PICTURES: "pictures of small models", STEPS: "ratios of single training steps, not hours"}

IMAGES = "IMAGES is a folder with the validation images of ImageNet-1K."


def _opt_ranges(recipe: str) -> str:
    return f"quietformer quantize DIR/{recipe}/runs/RUN --weights mse --search --texts FILE --eval-texts FILE"


def _table(number: int, section: str, shows: str, **more: Any) -> Item:
    return Item(name=f"table{number}", section=section, shows=shows, **more)


def _figure(number: int, section: str, shows: str, **more: Any) -> Item:
    return Item(name=f"figure{number}", section=section, shows=shows, **more)


def _published_bert(number: int, section: str, shows: str, *, document: str = "") -> Item:
    """A picture of the published BERT after MNLI."""
    return _figure(
        number, section, shows, runs={"paper/bert-mnli": ()}, files={"mnli.yaml": MNLI},
        then=("quietformer sweep mnli.yaml --out DIR/mnli",), note=PAIRS, document=document,
    )  # fmt: skip


def _looked_at(number: int, section: str, shows: str, recipe: str, *variants: str, document: str = "") -> Item:
    """Pictures of models trained from nothing."""
    images = "vit" in recipe
    stem = recipe.removeprefix("paper/")
    commands = []
    for variant in variants:
        run = f"DIR/{stem}-{variant}"
        commands += [
            f"quietformer train {recipe} --variant {variant} --out {run}",
            f"quietformer inspect {run} {'--images IMAGES' if images else '--texts FILE'} --figures {run}-figures",
        ]
    return _figure(
        number, section, shows, runs={recipe: variants}, then=tuple(commands), note=IMAGES if images else TEXTS,
        document=document,
    )  # fmt: skip


ITEMS: tuple[Item, ...] = (
    _table(
        1, "5.1", "clipped softmax on BERT-base: gamma and zeta",
        key="bert_clipped_gamma_zeta", unit="perplexity", seeds=2, axes=STRETCH,
    ),
    _table(
        2, "5.4", "vanilla, clipped and gated BERT, OPT-125m and ViT",
        key="main", seeds=2, then=(_opt_ranges("opt-125m"),), note=OPT_RANGES, axes=VARIANTS,
    ),
    _table(
        3, "5.4", "gates on OPT-350m and OPT-1.3B",
        key="opt_bigger", unit="perplexity", seeds=1,
        then=(_opt_ranges("opt-350m"), _opt_ranges("opt-1.3b")),
        note=f"The table gives no spread over trainings, so one seed. {OPT_RANGES}",
    ),
    _table(
        4, "B.1", "three kinds of gate and the parameters they add",
        runs={"paper/bert-base": ("linear-0.5", "mlp-4", "all-heads")},
        then=(
            "quietformer variants",
            *(
                f"quietformer train paper/bert-base --variant {variant} --plan --no-measure"
                for variant in ("linear-0.5", "mlp-4", "all-heads")
            ),
        ),
        note="The paper gives formulas. A plan counts the parameters that the gates of all layers add.",
    ),
    _table(
        5, "B.2", "all settings tried on BERT-base",
        key="bert_full", unit="perplexity", seeds=2, axes=VARIANTS,
    ),
    _table(
        6, "B.3", "all settings tried on OPT-125m",
        key="opt125m_full", unit="perplexity", seeds=2, then=(_opt_ranges("opt-125m"),), note=OPT_RANGES, axes=VARIANTS,
        columns=frozenset({"decay_norms"}),
    ),
    _table(
        7, "B.4", "all settings tried on ViT-S/16",
        key="vit_full", unit="top-1 accuracy, %", seeds=2, axes=VARIANTS, columns=frozenset({"patch_norm"}),
    ),
    _table(
        8, "B.5", "clipped softmax on ViT-S/16: gamma and zeta",
        key="vit_gamma_zeta_150_epochs", unit="top-1 accuracy, %; 150 epochs", seeds=2, axes=STRETCH,
    ),
    _table(
        9, "B.6", "OPT-1.3B fine-tuned with and without gates",
        key="fine_tuning_opt_1.3b", unit="perplexity", seeds=1,
        note="The table gives no spread, so one seed. `quietformer retrofit` is our own way with a finished model.",
    ),
    _table(
        10, "B.7", "BERT-base in 8 bits and fewer",
        key="bert_low_bit", unit="perplexity", seeds=2, axes=frozenset({"bits", "variant"}),
        runs={"paper/bert-base": ("vanilla", "clipped-0.025", "mlp-4")}, options="--bits w8a8,w6a8,w4a8,w6a6",
        then=("quietformer quantize DIR/bert-base/runs/RUN --bits w6a8 --weights minmax --texts FILE --eval-texts FILE",),
        note="Below 8 bits compare takes MSE ranges of weights, as the paper does; the row with min-max is a command of its "
        "own. RUN is a folder under runs, FILE a text file.",
    ),
    _table(
        11, "D", "hours of training on GPUs",
        key="compute_hours_A100", unit="hours on A100 GPUs", seeds=2,
        runs={
            "paper/bert-base": ("vanilla", "clipped-0.025", "linear-0.5", "mlp-4"),
            "paper/opt-125m": ("vanilla", "clipped-12-512-ln-decay", "linear-0.25-ln-decay"),
            "paper/vit-s16": ("vanilla", "clipped-0.0001-patch-norm", "linear-0.5-patch-norm", "mlp-4"),
        },
        then=(
            "quietformer train paper/opt-125m --set 'attention.gate=mlp(hidden=4)' --out DIR/opt-125m-mlp",
            "python -m experiments.speed.model_steps",
        ),
        note="Which gamma, pi and hidden size were timed is not said: table 2's are taken, and four hidden units. Each run "
        "says its minutes. The benchmark has ratios of single steps on one machine.",
        document=STEPS,
    ),
    _published_bert(1, "3", "where BERT's outliers sit: positions and dimensions", document=PICTURES),
    _published_bert(2, "3", "a BERT head that does nothing: P, V and PV", document=PICTURES),
    _looked_at(3, "3", "ViT: outlier patches and who attends to them", "paper/vit-s16", "vanilla", document=PICTURES),
    _figure(4, "3", "drawing: how an FFN's outliers reach the next attention"),
    _figure(5, "4.2", "drawing: gated attention"),
    _figure(
        6, "5.2", "gamma = -alpha/T over sequence lengths, BERT-6L",
        key="alpha_study", runs={"paper/bert-6l": ("vanilla",)}, files={"alpha.yaml": ALPHA},
        then=("quietformer sweep alpha.yaml --out DIR/alpha",), axes=frozenset({"alpha", "length", "variant"}),
        note="The text gives what was varied and what was found; the points are in the picture alone.",
    ),
    _figure(
        7, "5.3", "how open gates start, BERT-6L and ViT",
        key="bias_init_study", runs={"paper/bert-6l": ("vanilla",), "paper/vit-s16-150": ("vanilla",)}, seeds=2,
        axes=frozenset({"pi_init"}),
        note="The points are in the picture alone, and so are the values of pi_init; the variants span what the text speaks of.",
    ),
    _looked_at(
        8, "5.5", "a BERT head with softmax, clipped softmax and a gate",
        "paper/bert-base", "vanilla", "clipped-0.025", "mlp-4", document=PICTURES,
    ),
    _looked_at(9, "A", "ViT's outliers by layer, dimension and patch", "paper/vit-s16", "vanilla"),
    _published_bert(10, "A.1", "head 3 of BERT, more sequences"),
    _published_bert(11, "A.1", "head 12 of BERT"),
    _published_bert(12, "A.1", "heads of BERT without outliers"),
    _published_bert(13, "A.1", "head 3 in BERT's first eight layers"),
    _looked_at(14, "A.1", "heads of BERT with clipped softmax", "paper/bert-base", "clipped-0.025", document=PICTURES),
    _looked_at(15, "A.1", "heads of BERT with gates", "paper/bert-base", "mlp-4", document=PICTURES),
    _looked_at(16, "A.2", "ViT: outliers of layer 10, attention of layer 11", "paper/vit-s16", "vanilla"),
    _looked_at(17, "A.2", "ViT: outliers of layer 11, attention of layer 12", "paper/vit-s16", "vanilla"),
)  # fmt: skip
