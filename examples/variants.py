"""What each attention variant does to the same small BERT: `make demo`."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertForMaskedLM

import quietformer as qf

VARIANTS = {
    "softmax": qf.AttentionSpec(),
    "clipped gamma -.03": qf.AttentionSpec(normalizer=qf.ClippedSoftmax(gamma=-0.03)),
    "clipped alpha 0.5": qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=0.5)),
    "clipped alpha 4": qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=4)),
    "softmax1": qf.AttentionSpec(normalizer=qf.Softmax1()),
    "learned sink": qf.AttentionSpec(normalizer=qf.LearnedSink()),
    "linear gate pi .25": qf.AttentionSpec(gate=qf.LinearGate(pi_init=0.25)),
    "MLP gate": qf.AttentionSpec(gate=qf.MLPGate(hidden=4)),
    "all-heads gate": qf.AttentionSpec(gate=qf.AllHeadsGate()),
    "gate, pretrained": qf.AttentionSpec(gate=qf.LinearGate.for_pretrained()),
}


def small_bert(*, spread: float = 0.12) -> BertForMaskedLM:
    """Attention with some spread, as a trained model has; transformers' own start is 0.02."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    )
    model = BertForMaskedLM(config).eval()
    for name, parameter in model.named_parameters():
        if "query" in name or "key" in name:
            torch.nn.init.normal_(parameter, std=spread)
    return model


@torch.no_grad()
def main() -> None:
    tokens = torch.randint(5, 500, (4, 64), generator=torch.Generator().manual_seed(1))
    reference = small_bert()(tokens).logits
    table = Table(title="One small random BERT (4 layers, 4 heads, 64 tokens), ten kinds of attention")
    for column in ("variant", "row sum", "zeros", "zero rows", "new params", "logits moved"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for name, spec in VARIANTS.items():
        model = small_bert()
        before = model.num_parameters()
        torch.manual_seed(0)
        qf.apply_attention_(model, spec)
        output = model(tokens, output_attentions=True)
        weights = torch.stack(output.attentions)
        table.add_row(
            name,
            f"{weights.sum(-1).mean():.3f}",
            f"{(weights == 0).float().mean():.1%}",
            f"{(weights == 0).all(-1).float().mean():.1%}",
            f"{model.num_parameters() - before:,}",
            f"{(output.logits - reference).abs().max():.4f}",
        )
    console = Console()
    console.print(table)
    fresh = small_bert(spread=0.02)
    qf.apply_attention_(fresh, VARIANTS["clipped alpha 4"])
    dead = (torch.stack(fresh(tokens, output_attentions=True).attentions) == 0).all(-1).float().mean()
    console.print(
        "\nSoftmax gives away a weight of exactly one, so a head cannot leave a token alone. Clipped softmax and the "
        "sinks may give away less, down to rows of exact zeros; gates scale what a head adds.\n"
        f"A freshly initialised model attends almost uniformly: there alpha 4 leaves {dead:.0%} of the rows all zero, "
        "without a gradient. Start such a run with warmup_steps."
    )


if __name__ == "__main__":
    main()
