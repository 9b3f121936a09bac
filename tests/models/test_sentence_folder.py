from __future__ import annotations

import json
import math
from typing import get_args

import pytest
import torch

from quietformer.errors import QuietformerError
from quietformer.models.sentence_folder import (
    PoolingMode,
    SentenceSettings,
    pooled_by,
    read_sentence_settings,
    sentence_embedding,
)

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules.pooling."
MODULES = [{"type": f"{OLD}Transformer", "path": ""}, {"type": f"{OLD}Pooling", "path": "1_Pooling"}]


def written(folder, **files):
    """A folder with these JSON files; `pooling` is the pooling module's config, and modules.json is written unless given."""
    files = {"modules": MODULES, "pooling": {"pooling_mode_cls_token": True}} | files
    for name, content in files.items():
        path = folder / ("1_Pooling/config.json" if name == "pooling" else f"{name}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_plain_folder_and_a_cross_encoder_have_no_settings(tmp_path):
    assert read_sentence_settings(tmp_path) is None
    written(tmp_path, config_sentence_transformers={"model_type": "CrossEncoder"})
    assert read_sentence_settings(tmp_path) is None


def test_a_folder_of_an_early_version(tmp_path):
    modules = [
        {"idx": 0, "name": "0", "type": f"{OLD}Transformer", "path": "0_Transformer"},
        {"idx": 1, "name": "1", "type": f"{OLD}Pooling", "path": "1_Pooling"},
        {"idx": 2, "name": "2", "type": f"{OLD}Normalize", "path": "2_Normalize"},
    ]
    lengths = {"max_seq_length": 128, "do_lower_case": True}
    pooling = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    written(tmp_path, modules=modules, pooling=pooling, **{"0_Transformer/sentence_roberta_config": lengths})
    assert read_sentence_settings(tmp_path) == SentenceSettings(
        pooling=("mean",), normalize=True, max_seq_length=128, do_lower_case=True, transformer="0_Transformer"
    )


def test_a_folder_of_a_late_version(tmp_path):
    modules = [
        {"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""},
        {"type": f"{NEW}Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.base.modules.dense.Dense", "path": "2_Dense"},
        {"type": "custom_code.Whitening", "path": "3_Whitening"},
    ]
    prompts = {"query": "query: ", "document": None, "passage": ""}
    told = {"model_type": "SentenceTransformer", "prompts": prompts, "default_prompt_name": "query"}
    pooling = {"embedding_dimension": 8, "pooling_mode": ["max", "lasttoken"], "include_prompt": False}
    written(tmp_path, modules=modules, pooling=pooling, config_sentence_transformers=told)
    assert read_sentence_settings(tmp_path) == SentenceSettings(
        pooling=("max", "lasttoken"), include_prompt=False, prompts={"query": "query: ", "passage": ""},
        default_prompt_name="query", other_modules=("Dense", "custom_code.Whitening"),
    )  # fmt: skip


def test_without_flags_pooling_is_the_mean_and_without_a_module_there_is_none(tmp_path):
    found = read_sentence_settings(written(tmp_path / "a", pooling={"word_embedding_dimension": 8}))
    assert found == SentenceSettings(pooling=("mean",))
    found = read_sentence_settings(written(tmp_path / "b", modules=MODULES[:1]))
    assert found is not None
    assert found.pooling == ()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"modules": "[{"}, "modules.json cannot be read as JSON"),
        ({"modules": {}}, "modules.json must be a list of modules"),
        ({"modules": [{"path": ""}]}, "needs a type and a path"),
        ({"modules": [*MODULES[:1], {"type": f"{OLD}Pooling", "path": "../elsewhere"}]}, "leads out of the folder"),
        ({"modules": [*MODULES[:1], {"type": f"{OLD}Pooling", "path": "gone"}]}, "gone/config.json is not there"),
        ({"pooling": {"pooling_mode": "lastoken"}}, "did you mean 'lasttoken'"),
        ({"pooling": []}, "must be a JSON object"),
        ({"sentence_bert_config": {"max_seq_length": "256"}}, "max_seq_length must be int, got '256'"),
        ({"sentence_bert_config": {"max_seq_length": 0}}, "must be at least 1, got 0"),
        ({"config_sentence_transformers": {"prompts": {"query": 3}}}, "prompts must be text by name"),
        ({"config_sentence_transformers": {"default_prompt_name": "query"}}, "'query' is no prompt of it"),
    ],
)
def test_a_damaged_folder_is_one_line_that_names_the_file(tmp_path, files, says):
    with pytest.raises(QuietformerError) as refused:
        read_sentence_settings(written(tmp_path, **files))
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def by_hand(mode, rows):
    """The formula over the tokens of one text, as lists."""
    weights = range(1, len(rows) + 1)
    columns = list(zip(*rows, strict=True))
    return {
        "cls": rows[0],
        "lasttoken": rows[-1],
        "max": [max(column) for column in columns],
        "mean": [sum(column) / len(rows) for column in columns],
        "mean_sqrt_len_tokens": [sum(column) / math.sqrt(len(rows)) for column in columns],
        "weightedmean": [sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights) for column in columns],
    }[mode]


@pytest.mark.parametrize("mode", get_args(PoolingMode))
def test_pooling_is_that_of_each_text_alone(mode):
    """With padding right, left and none, whatever the padding holds."""
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    states = torch.randn(3, 5, 4, dtype=torch.float64).masked_fill(mask[..., None] == 0, float("nan"))
    wanted = [by_hand(mode, [row.tolist() for row in states[i][mask[i] == 1]]) for i in range(3)]
    torch.testing.assert_close(pooled_by(mode, states, mask), torch.tensor(wanted, dtype=torch.float64))


def test_modes_stand_side_by_side_and_are_normalized_together():
    states, mask = torch.randn(2, 3, 4), torch.ones(2, 3)
    found = sentence_embedding(states, mask, SentenceSettings(pooling=("cls", "mean"), normalize=True))
    wanted = torch.cat([states[:, 0], states.mean(1)], dim=1)
    torch.testing.assert_close(found, wanted / wanted.norm(dim=1, keepdim=True))
