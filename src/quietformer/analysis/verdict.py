"""What the metrics mean, in plain words: each claim with its number, then the next step."""

from __future__ import annotations

import shlex

from quietformer.results import numbers
from quietformer.results.annihilation import LISTED, AnnihilatedTensor, annihilated_words
from quietformer.results.inspect import OutlierMetrics, Place, Severity, TensorMetrics, Verdict, largest_kurtosis
from quietformer.results.labels import label

RANGE_SITES = (
    "ffn_output",
    "ffn_residual",
    "block_output",
    "attention_output",
    "attention_residual",
    "ffn_norm",
    "attention_norm",
)

BROKEN_BITS = 3.0
"""Bits left to the bulk of a tensor below which per-tensor INT8 loses it; a normal distribution keeps about 7.3."""

WORRYING_BITS = 6.0

HEAVY_KURTOSIS = 100.0

FEW_TOKENS = 500

AT_THE_START = 0.5
"""A prefix is advised where at least this share of the outliers stands at the first position."""

SENTENCES: dict[Severity, str] = {
    "broken": "Per-tensor INT8 is likely to break this model.",
    "worrying": "Per-tensor INT8 is likely to cost this model some quality.",
    "quiet": "No outliers that INT8 would mind.",
}


def rank_tensors(sites: list[TensorMetrics]) -> list[TensorMetrics]:
    """Tensors of the residual stream, those that INT8 hurts most first."""
    watched = [row for row in sites if row.site in RANGE_SITES]
    return sorted(watched, key=lambda row: (row.int8_bits_left, -(row.kurtosis or 0.0)))


def verdict(found: OutlierMetrics, data: str = "", *, heals: bool = True) -> Verdict:
    """Severity, a sentence, claims and next steps.

    `data` are the options that name what the model was run on, which the next steps need as well; `heals` says whether
    `retrofit` takes such a model.
    """
    ranked = rank_tensors(found.sites)
    bad = [row for row in ranked if row.int8_bits_left < BROKEN_BITS and (row.kurtosis or 0) > HEAVY_KURTOSIS]
    worrying = [row for row in ranked if row.int8_bits_left < WORRYING_BITS and (row.kurtosis or 0) > 30]
    severity: Severity = "broken" if bad else "worrying" if worrying else "quiet"
    affected = bad or worrying
    claims = [_range_claim(found, affected)] if affected else [_quiet_claim(ranked)]
    claims += _outlier_claims(found, affected)
    if (start := _share_at_start(found, affected)) >= AT_THE_START:
        claims.append(
            f"{numbers.percent(start, 0)} of the largest outliers stand at the first position, whatever token is there: tokens "
            "in front of the text can take them over (a prefix)."
        )
    claims += _head_claims(found)
    return Verdict(
        severity=severity,
        sentence=SENTENCES[severity],
        claims=claims,
        next_steps=_next_steps(found, severity, affected, f" {data}" if data else "", heals=heals),
        ranked=[Place(site=row.site, layer=row.layer) for row in ranked],
    )


def with_annihilated(found: Verdict, tensors: list[AnnihilatedTensor] | None) -> Verdict:
    """A model without outliers is not quiet if INT8 rounds a tensor of it away."""
    if not tensors:
        return found
    severity: Severity = "worrying" if found.severity == "quiet" else found.severity
    steps = found.next_steps if found.severity != "quiet" else []
    advice = [f"For {tensor.short}: {tensor.advice}." for tensor in tensors[:LISTED]]
    return found.model_copy(
        update={
            "severity": severity,
            "sentence": SENTENCES[severity],
            "claims": [*annihilated_words(tensors), *found.claims],
            "next_steps": [*advice, *steps],
        }
    )


def span(layers: list[int]) -> str:
    """`1-3, 5`."""
    parts: list[list[int]] = []
    for layer in sorted(set(layers)):
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _range_claim(found: OutlierMetrics, affected: list[TensorMetrics]) -> str:
    worst = affected[0].site
    rows = [row for row in affected if row.site == worst]
    reach = max(row.largest for row in rows)
    where = _where(found, worst, [row.layer for row in rows])
    bits = min(row.int8_bits_left for row in rows)
    kurtosis = numbers.whole(largest_kurtosis(rows))
    name = label(worst)
    return (
        f"{name[0].upper()}{name[1:]} of layer{'s' if len(rows) > 1 else ''} {span([row.layer for row in rows])} "
        f"{'reach' if 'outputs' in name else 'reaches'} "
        f"{numbers.whole(reach)}{where}; kurtosis up to {kurtosis}; "
        f"per-tensor INT8 keeps {numbers.one_place(bits)} bits for the ordinary values."
    )


def _where(found: OutlierMetrics, site: str, layers: list[int]) -> str:
    """` in dimension 99; the outliers sit in dimensions 99, 223, most often at `[CLS]``, as far as it is known."""
    rows = [row for row in found.outliers if row.site == site and row.layer in layers]
    largest = max((d for row in rows for d in row.dimensions), key=lambda d: d.largest, default=None)
    text = "" if largest is None else f" in dimension {largest.dimension}"
    dimensions = sorted({d for row in rows for d in row.few_dimensions})
    few = all(row.few_dimensions for row in rows) and len(dimensions) <= 8
    if few and len(dimensions) > 1:
        text += f"; the outliers sit in dimensions {', '.join(map(str, dimensions))}"
    tokens: dict[str, int] = {}
    for row in rows:
        if row.delimiter_share is not None:  # else tokens have no names
            for token in row.tokens:
                tokens[token.token] = tokens.get(token.token, 0) + token.count
    top = sorted(tokens, key=lambda token: -tokens[token])[:2]
    return text + (f", most often at {' and '.join(map(quoted, top))}" if top else "")


def quoted(token: str) -> str:
    """A token in text, which it must not be taken for."""
    return "`" + token.replace("`", "'") + "`"


def _quiet_claim(ranked: list[TensorMetrics]) -> str:
    if not ranked:
        return "No tensor of the residual stream was seen."
    worst = ranked[0]
    bits, kurtosis = numbers.one_place(worst.int8_bits_left), numbers.kurtosis(largest_kurtosis(ranked))
    return (
        f"The tensor with the widest range is {label(worst.site)} of layer {worst.layer}: largest value "
        f"{numbers.norm(worst.largest)}, INT8 keeps {bits} bits for the rest; the largest kurtosis is {kurtosis}."
    )


def _outlier_claims(found: OutlierMetrics, affected: list[TensorMetrics]) -> list[str]:
    claims = []
    if affected:
        site, layers = affected[0].site, {row.layer for row in affected if row.site == affected[0].site}
        rows = [row for row in found.outliers if row.site == site and row.layer in layers]
        total = sum(row.total for row in rows)
        if total and all(row.delimiter_share is not None for row in rows):
            share = sum((row.delimiter_share or 0.0) * row.total for row in rows) / total
            claims.append(
                f"{numbers.percent(share, 0)} of the {numbers.whole(total)} outliers in {label(site)} stand on delimiters and "
                "special tokens."
            )
    tokens = found.data.tokens or 0
    if 0 < tokens < FEW_TOKENS:
        claims.append(f"Only {tokens} tokens were seen, too few to rely on.")
    if not found.model.attention_seen:
        claims.append(
            "Its attention is off transformers' interface or computes more than softmax, so its heads were not looked into."
        )
    return claims


def _share_at_start(found: OutlierMetrics, affected: list[TensorMetrics]) -> float:
    """Of the outliers of the worst tensor, in a causal language model; it is 1 / T where no position stands out."""
    causal = found.model.class_name.endswith(("ForCausalLM", "LMHeadModel"))
    if not causal or not affected:
        return 0.0
    site, layers = affected[0].site, {row.layer for row in affected if row.site == affected[0].site}
    rows = [row for row in found.outliers if row.site == site and row.layer in layers and len(row.positions) > 1]
    total = sum(sum(row.positions) for row in rows)
    return sum(row.positions[0] for row in rows) / total if total else 0.0


def _head_claims(found: OutlierMetrics) -> list[str]:
    idle = [(row.layer, head, score) for row in found.heads for head, score in enumerate(row.no_op) if score > 0.5]
    claims = []
    if idle:
        layer, head, score = max(idle, key=lambda one: one[2])
        claims.append(
            f"{len(idle)} head{'s' if len(idle) > 1 else ''} with a no-op score above 0.5 (mostly doing nothing); the idlest is "
            f"head {head} of layer {layer} "
            f"with {numbers.two_places(score)}."
        )
    dead = [(row.layer, max(row.zero_rows)) for row in found.heads if max(row.zero_rows) > 0.5]
    if dead:
        claims.append(
            f"In layers {span([layer for layer, _ in dead])} a head gives away nothing at all in more than half of its rows."
        )
    return claims


def _next_steps(
    found: OutlierMetrics, severity: str, affected: list[TensorMetrics], data: str, *, heals: bool
) -> list[str]:
    name = shlex.quote(found.model.name)
    if severity == "quiet":
        return [f"Quantize it as it is: quietformer export {name} OUT{data}."]
    keep = " ".join(f"--keep '*.{site}=16'" for site in dict.fromkeys(row.site for row in affected))
    steps = [
        f"Try first what needs no training, INT8 found by a search: quietformer export {name} OUT{data}.",
        "Measure what INT8 of every tensor does, and which tensors are to blame: "
        f"quietformer quantize {name}{data} --sensitivity.",
        f"Keep what it breaks in 16 bits: quietformer quantize {name}{data} {keep}.",
    ]
    if _share_at_start(found, affected) >= AT_THE_START:
        steps.insert(
            0, f"Measure what a prefix brings: quietformer quantize {name}{data} --placement matmul --prefix auto."
        )
    if found.model.attention == "softmax" and found.model.attention_seen:
        heal = "For hardware that needs every tensor in INT8, heal it by a short fine-tuning that needs no labels"
        if heals:
            steps.insert(1, f"{heal}: quietformer retrofit {name} OUT{data} --placement paper.")
        steps.append("If you are about to pre-train: start with clipped softmax or gated attention.")
    return steps
