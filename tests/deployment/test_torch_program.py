"""What is not written whole is refused before the work, or as soon as it gives its first output."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

import quietformer as qf
from quietformer.deployment.torch_program import check_exportable, output_name
from quietformer.errors import QuietformerError

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = CLIPTextConfig(vocab_size=100, max_position_embeddings=16, projection_dim=16, **SIZES)
IMAGES = CLIPVisionConfig(image_size=16, patch_size=8, projection_dim=16, **SIZES)
TOKENS = {"input_ids": torch.arange(3, 13).view(2, 5)}
PIXELS = {"pixel_values": torch.zeros(2, 3, 16, 16)}


@pytest.mark.parametrize(
    ("model", "batch"),
    [(CLIPTextModelWithProjection(TEXT), TOKENS), (CLIPVisionModelWithProjection(IMAGES), PIXELS)],
)
def test_a_projection_is_not_left_out_in_silence(tmp_path, model, batch):
    says = r"its embeddings are a projection .* which is not written; export CLIP(Text|Vision)Model without it"
    with pytest.raises(QuietformerError, match=says):
        qf.export(model, tmp_path / "out")
    with pytest.raises(QuietformerError, match=says):
        output_name(model.eval(), batch)


def test_the_same_without_projection_can_be_exported():
    model = CLIPTextModel(TEXT).eval()
    check_exportable(model)
    assert output_name(model, TOKENS) == "last_hidden_state"
