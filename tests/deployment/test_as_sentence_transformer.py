"""An exported folder as a SentenceTransformer, beside the original one."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import quietformer as qf
from quietformer.errors import QuietformerError
from quietformer.models.sentence_folder import read_sentence_settings
from tests.deployment.exports import OTHER

FP32 = "onnx/model.onnx"


@pytest.fixture
def folders(sentence_encoder, exported_encoder, tmp_path):
    """The original and the export, both with a default prompt and another similarity than the usual one."""
    found = []
    for name, folder in (("original", sentence_encoder), ("export", exported_encoder)):
        shutil.copytree(folder, tmp_path / name)
        path = tmp_path / name / "config_sentence_transformers.json"
        other = {"default_prompt_name": "query", "similarity_fn_name": "dot"}
        path.write_text(json.dumps(json.loads(path.read_text()) | other))
        found.append(tmp_path / name)
    return found


def test_it_has_the_prompts_and_the_similarity_of_the_original(folders):
    original, ours = SentenceTransformer(str(folders[0]), device="cpu"), qf.sentence_transformer(folders[1], file=FP32)
    assert ours.prompts == original.prompts
    assert ours.default_prompt_name == original.default_prompt_name
    assert ours.similarity_fn_name == original.similarity_fn_name
    for options in ({}, {"prompt_name": "query"}, {"prompt_name": "passage"}, {"prompt": "other: "}):
        wanted = original.encode(OTHER, **options)
        np.testing.assert_allclose(ours.encode(OTHER, **options), wanted, atol=1e-5)
        np.testing.assert_allclose(qf.OnnxModel(folders[1], file=FP32).encode(OTHER, **options), wanted, atol=1e-5)
    np.testing.assert_allclose(ours.encode_query(OTHER), original.encode_query(OTHER), atol=1e-5)
    wanted = original.similarity(original.encode(OTHER), original.encode(OTHER))
    torch.testing.assert_close(ours.similarity(ours.encode(OTHER), ours.encode(OTHER)), wanted, atol=1e-4, rtol=1e-4)


def test_the_similarity_is_what_the_source_says(folders, sentence_encoder):
    assert read_sentence_settings(folders[0]).similarity == "dot"
    assert read_sentence_settings(sentence_encoder).similarity is None


def test_what_it_saves_loads_as_the_page_says(folders, tmp_path):
    ours = qf.sentence_transformer(folders[1])
    ours.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    assert again.prompts == ours.prompts
    for other in (again, qf.sentence_transformer(tmp_path / "saved" / "0_OnnxModel")):
        np.testing.assert_array_equal(other.encode(OTHER), ours.encode(OTHER))


def test_a_model_that_makes_no_embeddings_is_one_line(folders):
    modules = json.loads((folders[1] / "modules.json").read_text())
    modules[1]["type"] = "sentence_transformers.models.Dense"
    (folders[1] / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(QuietformerError, match=r"the Dense module of .* is not run here"):
        qf.sentence_transformer(folders[1])
