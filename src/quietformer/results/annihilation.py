"""Tensors of which a grid leaves almost nothing, and what helps them."""

from __future__ import annotations

from quietformer.results import numbers
from quietformer.results.base import Number, Record
from quietformer.results.tables import Table

NEARLY_ALL = 0.95
"""Share of the nonzero values that become zero; alone it says little: softmax and GELU give many values near zero."""

TOKENS_LOSE = 0.5
"""Share of its energy that a token loses with these values, averaged over tokens; healthy tensors are below 0.01."""

CHANNELS_LOSE = 0.9
"""The same for channels: where one channel dwarfs all others, tokens keep their energy and yet nothing else is left."""

LISTED = 5


class RoundedToZero(Record):
    """How much of a tensor becomes zero on a grid, and what that takes from it."""

    zeroed: Number = None
    lost_by_token: Number = None
    lost_by_channel: Number = None

    @property
    def annihilated(self) -> bool:
        """Whether nearly all values become zero, and most of what tokens or channels held goes with them."""
        by_token, by_channel = self.lost_by_token or 0.0, self.lost_by_channel or 0.0
        return (self.zeroed or 0.0) >= NEARLY_ALL and (by_token >= TOKENS_LOSE or by_channel >= CHANNELS_LOSE)


class Remedy(RoundedToZero):
    """The same tensor after something was done for it: `smoothing` or `per token`."""

    name: str


class AnnihilatedTensor(RoundedToZero):
    """A tensor that INT8 rounds away, the remedies that were measured, and the one to take."""

    site: str
    short: str
    token_spread: Number = None
    remedies: list[Remedy]
    advice: str

    def words(self) -> str:
        """`0.ffn_output.input: 99.3 % of its values become zero; per token 0.4 %`."""
        tried = "".join(f", {remedy.name} {numbers.percent(remedy.zeroed)}" for remedy in self.remedies)
        return f"{self.short}: {numbers.percent(self.zeroed)} of its values become zero{tried}"


def annihilated_words(found: list[AnnihilatedTensor] | None) -> list[str]:
    """One sentence, if there is anything to say."""
    if not found:
        return []
    worst = found[0]
    more = f" The others: {numbers.counted(len(found) - 1, 'tensor')}." if len(found) > 1 else ""
    what = numbers.counted(len(found), "annihilated tensor")
    return [f"{what}, of which INT8 leaves almost nothing. {worst.words()}. Remedy: {worst.advice}.{more}"]


def annihilated_tables(found: list[AnnihilatedTensor] | None) -> list[Table]:
    """The worst five."""
    if not found:
        return []

    def cells(tensor: AnnihilatedTensor) -> list[str]:
        by_name = {remedy.name: numbers.percent(remedy.zeroed) for remedy in tensor.remedies}
        spread = numbers.rough(tensor.token_spread)
        return [
            tensor.short, numbers.percent(tensor.zeroed), spread, by_name.get("smoothing", "-"),
            by_name.get("per token", "-"), tensor.advice,
        ]  # fmt: skip

    columns = ["tensor", "become zero", "largest / median token", "after smoothing", "per token", "remedy"]
    rows = [cells(tensor) for tensor in found[:LISTED]]
    return [Table("Annihilated tensors: the values that become zero", columns, rows, frozenset({0, 5}))]
