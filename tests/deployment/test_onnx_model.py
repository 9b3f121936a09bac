"""An exported folder that runs: embeddings as torch makes them, in any batch, and one line for a folder that cannot run."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import quietformer as qf
from quietformer.errors import QuietformerError, QuietformerWarning
from tests.deployment.exports import LENGTH, OTHER

PROMPT, FP32 = "find: ", "onnx/model.onnx"


@pytest.fixture
def folder(exported_encoder):
    return exported_encoder


@pytest.fixture(scope="module")
def fp32(exported_encoder):
    return qf.OnnxModel(exported_encoder, file=FP32)


def by_torch(source, texts):
    """The first token, normalized, one text at a time."""
    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModel.from_pretrained(source).eval()
    found = []
    for text in texts:
        batch = tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="pt")
        with torch.no_grad():
            first = model(**batch).last_hidden_state[0, 0]
        found.append((first / first.norm()).numpy())
    return np.stack(found)


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_encode_of_the_fp32_graph_is_what_torch_gives(sentence_encoder, fp32, batch_size):
    np.testing.assert_allclose(fp32.encode(OTHER, batch_size=batch_size), by_torch(sentence_encoder, OTHER), atol=1e-5)


def test_int8_is_near_in_both_runtimes(sentence_encoder, folder):
    wanted = by_torch(sentence_encoder, OTHER)
    for runtime in ("onnxruntime", "openvino"):
        found = qf.OnnxModel(folder, runtime=runtime, threads=1).encode(OTHER)
        assert ((found * wanted).sum(1) > 0.98).all()


def test_a_single_text_is_a_single_embedding_and_no_text_none(fp32):
    one = fp32.encode(OTHER[0])
    assert one.shape == (32,)
    np.testing.assert_allclose(one, fp32.encode(OTHER)[0], atol=1e-6)
    assert fp32.encode([]).shape == (0, 32)


def test_prompts_stand_before_the_text(fp32):
    wanted = fp32.encode([PROMPT + text for text in OTHER])
    np.testing.assert_allclose(fp32.encode(OTHER, prompt_name="query"), wanted, atol=1e-6)
    np.testing.assert_allclose(fp32.encode(OTHER, prompt=PROMPT), wanted, atol=1e-6)
    with pytest.raises(QuietformerError, match="no prompt 'queries'; the folder has query, passage"):
        fp32.encode(OTHER, prompt_name="queries")


def test_prompt_tokens_are_left_out_of_pooling_where_the_folder_says_so(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    pooling = tmp_path / "other" / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"word_embedding_dimension": 32, "include_prompt": False}))  # the mean
    model = qf.OnnxModel(tmp_path / "other", file=FP32)
    states = model(PROMPT + OTHER[0])
    count = len(model.tokenizer(PROMPT)["input_ids"]) - 1  # the token that ends a text is not one of the prompt
    mean = states[count:].mean(0)
    np.testing.assert_allclose(model.encode(OTHER[0], prompt=PROMPT), mean / mean.norm(), atol=1e-5)


def test_calling_the_model_gives_its_output_for_texts_and_for_arrays(fp32):
    states = fp32(OTHER)
    lengths = [len(row) for row in fp32.tokenizer(OTHER, truncation=True, max_length=LENGTH)["input_ids"]]
    assert [len(one) for one in states] == lengths
    ids = torch.tensor(fp32.tokenizer([OTHER[1]])["input_ids"])
    torch.testing.assert_close(fp32(input_ids=ids)[0], states[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(fp32(input_ids=ids.numpy())[0], states[1], atol=1e-5, rtol=1e-4)


def test_it_does_what_sentence_transformers_asks_of_a_module(fp32, tmp_path):
    features = fp32.preprocess(OTHER)
    assert set(features) >= {"input_ids", "attention_mask"}
    embeddings = fp32(features)["sentence_embedding"]
    np.testing.assert_allclose(embeddings, fp32.encode(OTHER), atol=1e-6)
    assert fp32.get_sentence_embedding_dimension() == embeddings.shape[1]
    assert isinstance(fp32, torch.nn.Module)
    shorter = copy.deepcopy(fp32)
    shorter.max_seq_length = 5
    assert shorter.preprocess(OTHER)["input_ids"].shape[1] == 5
    fp32.save(str(tmp_path / "0_OnnxModel"))
    again = type(fp32).load(str(tmp_path), subfolder="0_OnnxModel", local_files_only=True)
    assert again.settings == fp32.settings


def test_sentence_transformers_encodes_with_it_as_with_the_original(sentence_encoder, fp32):
    original = SentenceTransformer(str(sentence_encoder), device="cpu")
    ours = SentenceTransformer(modules=[fp32], device="cpu")
    for options in ({}, {"prompt": PROMPT}):
        np.testing.assert_allclose(ours.encode(OTHER, **options), original.encode(OTHER, **options), atol=1e-5)
        np.testing.assert_allclose(fp32.encode(OTHER, **options), original.encode(OTHER, **options), atol=1e-5)
    assert ours.get_embedding_dimension() == original.get_embedding_dimension()
    assert ours.max_seq_length == original.max_seq_length


class Other(qf.OnnxModel):
    """With arguments of its own."""

    def __init__(self, name, folder):
        super().__init__(folder, file=FP32)
        self.name = name


def test_it_can_be_sent_to_another_process(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    model = Other("mine", folder.name)
    model.max_seq_length = 6
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(pickle.dumps(model.eval()))
    assert (type(again), again.name, again.max_seq_length, again.training) == (Other, "mine", 6, False)
    np.testing.assert_array_equal(again.encode(OTHER), model.encode(OTHER))


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_threads_share_one_model(folder, runtime):
    texts = [[f"{topic} and {number}" for number in range(8)] for topic in ("cats", "maps", "bread", "chess")]
    alone = qf.OnnxModel(folder, runtime=runtime, threads=1)
    wanted = [alone.encode(several) for several in texts]
    shared, together = qf.OnnxModel(folder, runtime=runtime, threads=1), Barrier(len(texts))

    def encoded(several):
        together.wait()
        return [shared.encode(several) for _ in range(40)]

    with ThreadPoolExecutor(len(texts)) as pool:
        for expected, found in zip(wanted, pool.map(encoded, texts), strict=True):
            for one in found:
                np.testing.assert_allclose(one, expected, atol=1e-6)


def test_folders_of_earlier_releases_run(folder, tmp_path):
    """They had no config.json, no modules.json and no format."""
    shutil.copytree(folder, tmp_path / "earlier", ignore=shutil.ignore_patterns("*.json", "1_Pooling"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "earlier")
    mean = qf.OnnxModel(tmp_path / "earlier")(OTHER[0]).mean(0)
    np.testing.assert_allclose(qf.OnnxModel(tmp_path / "earlier").encode(OTHER[0]), mean, atol=1e-5)


def test_a_copy_may_leave_out_what_its_runtime_does_not_need(folder, tmp_path):
    wanted = qf.OnnxModel(folder).encode(OTHER)
    shutil.copytree(
        folder, tmp_path / "copy", ignore=shutil.ignore_patterns("openvino", "onnx", "report*", "README.md")
    )
    np.testing.assert_array_equal(qf.OnnxModel(tmp_path / "copy").encode(OTHER), wanted)
    shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("*.onnx"))
    assert qf.OnnxModel(tmp_path / "other", runtime="openvino").exported.runtime == "openvino"


def test_prompts_beside_the_graph_may_be_edited(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": {"search": "look for: "}}))
    with pytest.warns(QuietformerWarning, match=r"config_sentence_transformers\.json is not as it was exported"):
        opened = qf.OnnxModel(tmp_path / "copy")
    assert dict(opened.settings.prompts) == {"search": "look for: "}


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def flip(path):
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def unsealed(at):
    """As of an earlier release, which kept no digests."""
    told = json.loads((at / "export.json").read_text())
    (at / "export.json").write_text(json.dumps({name: value for name, value in told.items() if name != "files"}))


def damaged(folder, place, change):
    shutil.copytree(folder, place)
    change(place)
    return place


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (
            lambda at: [path.unlink() for path in at.rglob("model*.onnx")], {},
            "is not complete: it has no model.onnx or onnx/model_quantized.onnx",
        ),
        (lambda at: cut(at / "model.onnx", 9000), {}, "model.onnx is damaged: it is not the file that was exported"),
        (lambda at: flip(at / "model.onnx"), {}, "model.onnx is damaged"),
        (lambda at: flip(at / "openvino" / "openvino_model.bin"), {"runtime": "openvino"}, "openvino_model.bin is damaged"),
        (lambda at: flip(at / FP32), {"file": FP32}, "onnx/model.onnx is damaged"),
        (lambda at: (unsealed(at), cut(at / "model.onnx", 9000)), {}, "onnxruntime does not take"),
        (lambda at: (at / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), {}, "run `git lfs pull`"),
        (lambda at: (at / "modules.json").unlink(), {}, "is not complete: it has no modules.json"),
        (lambda at: (at / "config.json").unlink(), {}, "is not complete: it has no config.json"),
        (lambda at: (at / "export.json").write_text('{"files": {"config.json": 1}}'), {}, "no usable list of files"),
        (lambda at: (at / "export.json").write_text(json.dumps({"files": {"x" * 999: ""}})), {}, "is not complete"),
        (lambda at: (at / "export.json").write_text('{"format": 99}'), {}, "has format 99, this release reads up to"),
        (lambda at: (at / "export.json").write_text("{"), {}, "export.json cannot be read as JSON"),
        (lambda at: (at / "export.json").write_text('{"format": "new"}'), {}, "no usable format: 'new'"),
        (lambda at: (at / "config.json").write_text("[]"), {}, "config.json must be a JSON object"),
        (lambda at: (at / "1_Pooling" / "config.json").unlink(), {}, "it has no 1_Pooling/config.json"),
        (lambda at: (at / "tokenizer.json").unlink(), {}, "it has no tokenizer.json; make it with"),
        (
            lambda at: (unsealed(at), (at / "tokenizer.json").unlink()), {},
            "has no tokenizer; save one into the folder",
        ),
        (lambda at: cut(at / "tokenizer.json", 900), {}, "save one into the folder, or make it with `quietformer export"),
        (lambda at: shutil.rmtree(at / "openvino"), {"runtime": "openvino"}, "it has no openvino/openvino_model.xml"),
        (
            lambda at: (at / "openvino" / "openvino_model.bin").unlink(), {"runtime": "openvino"},
            "lacks its weights, openvino_model.bin",
        ),
        (lambda at: None, {"file": "model_fp16.onnx"}, "it has no model_fp16.onnx"),
        (lambda at: None, {"runtime": "onnx"}, "unknown runtime 'onnx'"),
        (lambda at: None, {"threads": -1}, "threads must lie between 1 and 1024, got -1"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_run_is_one_line(folder, tmp_path, change, options, says):
    at = damaged(folder, tmp_path / "at", change)
    with pytest.raises(QuietformerError) as refused:
        qf.OnnxModel(at, **options).encode(OTHER)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("id2label", {"a": "x"}, lambda model: model.labels),
        ("hidden_size", "32", lambda model: model.get_embedding_dimension()),
        ("hidden_size", 10**30, lambda model: model.get_embedding_dimension()),
        ("vocab_size", None, lambda model: model.exported.vocabulary),
    ],
)  # fmt: skip
def test_what_a_damaged_config_says_is_one_line(folder, tmp_path, field, value, read):
    def change(at):
        config = json.loads((at / "config.json").read_text())
        (at / "config.json").write_text(json.dumps(config | {field: value}))
        (at / "1_Pooling" / "config.json").write_text("{}")

    with pytest.raises(QuietformerError, match=rf"config\.json.*{field}"):
        read(qf.OnnxModel(damaged(folder, tmp_path / "at", change)))


def test_tokens_of_another_model_are_one_line(folder):
    strange = {name: np.full((1, 4), 10**6) for name in ("input_ids", "attention_mask")}
    with pytest.raises(QuietformerError, match=r"the graph cannot run input_ids \[1, 4\].*; its longest text"):
        qf.OnnxModel(folder)(strange)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_arrays_are_taken_in_any_width_and_not_as_another_kind(folder, runtime):
    model = qf.OnnxModel(folder, runtime=runtime)
    tokens = dict(model.tokenizer(OTHER[:2], padding=True, return_tensors="np"))
    wanted = model(tokens)
    for kind in (np.int32, np.int16, np.int64):
        narrow = {name: array.astype(kind) for name, array in tokens.items()}
        narrow["attention_mask"] = narrow["attention_mask"].astype(bool)
        torch.testing.assert_close(model(narrow)["last_hidden_state"], wanted["last_hidden_state"])
    with pytest.raises(QuietformerError, match=r"^input_ids must be int64, got float32; pass an array of int64$"):
        model(input_ids=tokens["input_ids"].astype(np.float32))


def test_a_folder_that_is_none_and_texts_that_are_none(fp32, tmp_path):
    with pytest.raises(QuietformerError, match="is not a folder"):
        qf.OnnxModel(tmp_path / "none")
    with pytest.raises(QuietformerError, match="got int in the list"):
        fp32.encode(["a", 3])
    with pytest.raises(QuietformerError, match="batch_size must be at least 1"):
        fp32.encode(["a"], batch_size=0)
    with pytest.raises(QuietformerError, match="give texts, or arrays"):
        fp32()
