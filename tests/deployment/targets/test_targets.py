"""Folders as clients look for them; what each client does with one is tried by `make clients`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tokenizers import Tokenizer, normalizers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaModel,
)

import quietformer as qf
from quietformer.deployment.client_folder import stale_files
from quietformer.deployment.shipment import model_to_ship
from quietformer.deployment.target import every_target
from quietformer.deployment.targets.optimum import optimum_class
from quietformer.deployment.targets.transformers_js import pipeline_of
from quietformer.errors import QuietformerError
from tests.deployment.exports import LABELS, LENGTH, OTHER, small, write_classifier, write_encoder, write_model
from tests.tiny_models import build

NAMES = [target.name for target in every_target()]


@pytest.fixture
def source(sentence_encoder):
    return sentence_encoder


@pytest.fixture
def encoder(exported_encoder):
    return exported_encoder


@pytest.fixture(scope="module")
def classified(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("classifier") / "source")


@pytest.fixture(scope="module")
def classifier(classified, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "classifier"
    qf.export(classified, out, runtime="onnxruntime", keep_fp32=True, **small(classified))
    return out


def read(path: Path):
    return json.loads(path.read_text())


def details(folder: Path):
    return {one["name"]: one for one in read(folder / "export.json")["targets"]}


def run(graph: Path, tokenizer, texts, output: str):
    """ONNX Runtime by itself."""
    batch = tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="np")
    session = onnxruntime.InferenceSession(str(graph))
    fed = {value.name: batch[value.name].astype(np.int64) for value in session.get_inputs()}
    return session.run([output], fed)[0], batch["attention_mask"]


def test_config_json_is_the_original_and_nothing_of_ours_is_in_it(source, encoder):
    told = read(encoder / "config.json")
    assert not [
        key for key in told if "quant" in key or "quietformer" in str(told[key]) or key == "attn_implementation"
    ]
    assert {**told, "dtype": "float32"} == {**read(source / "config.json"), "dtype": "float32"}
    loaded = AutoConfig.from_pretrained(encoder)
    assert (loaded.hidden_size, loaded.num_hidden_layers, loaded.architectures) == (32, 2, ["BertModel"])


def test_sentence_transformers_finds_what_the_source_folder_said(encoder):
    kinds = [(one["type"].rpartition(".")[2], one["path"]) for one in read(encoder / "modules.json")]
    assert kinds == [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    pooling = read(encoder / "1_Pooling" / "config.json")
    assert pooling["word_embedding_dimension"] == 32
    assert [flag for flag, on in pooling.items() if on is True and flag.startswith("pooling_mode")] == [
        "pooling_mode_cls_token"
    ]
    assert read(encoder / "sentence_bert_config.json")["max_seq_length"] == LENGTH
    assert read(encoder / "config_sentence_transformers.json")["prompts"] == {"query": "find: ", "passage": ""}
    # Clients that do not read these files cut texts where the tokenizer says.
    assert read(encoder / "tokenizer_config.json")["model_max_length"] == LENGTH


def test_the_tokenizer_is_the_one_of_the_source_folder(source, encoder):
    ours, theirs = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (encoder, source))
    assert ours.encode(OTHER[-1]).ids == theirs.encode(OTHER[-1]).ids


def test_transformers_js_finds_both_precisions_and_other_clients_the_same_graph(encoder):
    graph = (encoder / "onnx" / "model_quantized.onnx").read_bytes()
    assert graph == (encoder / "model.onnx").read_bytes()
    integers = {tensor.data_type for tensor in onnx.load_from_string(graph).graph.initializer}
    assert integers & {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    floats = {tensor.data_type for tensor in onnx.load(encoder / "onnx" / "model.onnx").graph.initializer}
    assert not floats & {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}


def test_the_pooled_output_is_the_pooling_of_the_first_output(encoder):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    for graph in (encoder / "model.onnx", encoder / "onnx" / "model.onnx"):
        session = onnxruntime.InferenceSession(str(graph))
        assert [value.name for value in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
        states, _ = run(graph, tokenizer, OTHER, "last_hidden_state")
        embedding, _ = run(graph, tokenizer, OTHER, "sentence_embedding")
        first = states[:, 0]
        np.testing.assert_allclose(embedding, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)


def test_the_card_says_which_graph_is_pooled(encoder):
    card = (encoder / "README.md").read_text()
    assert "The ONNX graph gives `last_hidden_state` and `sentence_embedding`" in card
    assert "second output" in details(encoder)["onnxruntime"]["note"]
    if (encoder / "openvino").is_dir():
        assert "the OpenVINO IR `last_hidden_state` alone." in card
        assert "second output" not in details(encoder)["openvino"]["note"]


def test_pooling_without_the_prompt_is_in_no_graph(tmp_path):
    source = write_encoder(tmp_path / "source")
    pooling = source / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(read(pooling) | {"include_prompt": False}))
    with pytest.raises(QuietformerError, match="--pooled: this model pools without the tokens of its prompt"):
        qf.export(source, tmp_path / "out", pooled=True, **small(source))
    assert not (tmp_path / "out").exists()


def test_every_client_is_told_how_to_load_and_python_code_is_python(encoder, classifier):
    for folder in (encoder, classifier):
        for one in details(folder).values():
            assert "FOLDER" in one["code"], one["name"]
            assert one["install"]
            if one["language"] == "python":
                compile(one["code"], one["name"], "exec")
            for name in re.findall(r"FOLDER/([\w./-]+)", one["code"]):
                assert (folder / name).exists(), (one["name"], name)


def test_the_default_suits_the_model_and_stores_weights_once(classifier):
    assert list(details(classifier)) == ["onnxruntime", "optimum", "quietformer", "text-embeddings-inference"]
    assert [path.name for path in sorted(classifier.rglob("*.onnx"))] == ["model.onnx", "model_fp32.onnx"]
    assert not (classifier / "modules.json").exists()


def test_a_classifier_keeps_its_labels(classifier):
    loaded = AutoConfig.from_pretrained(classifier)
    assert loaded.id2label == LABELS
    assert loaded.label2id == {name: number for number, name in LABELS.items()}


def test_transformers_js_alone_has_the_graph_once(tmp_path):
    source = write_model(tmp_path / "source")
    report = qf.export(source, tmp_path / "out", targets="transformers.js", **small(source))
    assert [path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.onnx")] == [
        "onnx/model_quantized.onnx"
    ]
    assert [one.file for one in report.export.runtimes] == ["onnx/model_quantized.onnx"]
    assert not (tmp_path / "out" / "openvino").exists()
    embeddings = qf.OnnxModel(tmp_path / "out").encode(OTHER)
    assert embeddings.shape == (len(OTHER), 32)
    assert (tmp_path / "out" / "modules.json").is_file()  # or our own runtime would not know the pooling


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"targets": "sentence-transformer"},
            "unknown target 'sentence-transformer'; did you mean 'sentence-transformers'",
        ),
        (
            {"targets": "fastembed"},
            "--for fastembed: it makes embeddings of texts, and a BertForSequenceClassification does not",
        ),
        ({"targets": "onnxruntime", "runtime": "openvino"}, "leave out --runtime openvino"),
        ({"pooled": True}, "--pooled: it makes embeddings of texts"),
    ],
)
def test_a_target_that_does_not_fit_is_one_line_before_the_work(tmp_path, options, says):
    source = write_classifier(tmp_path / "source")
    with pytest.raises(QuietformerError) as refused:
        qf.export(source, tmp_path / "out", **small(source), **options)
    assert says in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_module_past_pooling_is_not_left_out_in_silence(tmp_path):
    source = write_encoder(tmp_path / "source")
    modules = read(source / "modules.json")
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(QuietformerError, match=r"the Dense module of this model is not part of the exported graph"):
        qf.export(source, tmp_path / "out", targets="sentence-transformers", **small(source))
    qf.export(source, tmp_path / "out", runtime="onnxruntime", **small(source))
    assert list(details(tmp_path / "out")) == ["onnxruntime", "optimum", "quietformer"]
    exported = qf.OnnxModel(tmp_path / "out")
    assert exported(OTHER[0]).shape[1] == 32
    with pytest.raises(QuietformerError, match=r"the Dense module of .* is not run here"):
        exported.encode(OTHER)


@pytest.mark.parametrize(
    ("first", "kind"),
    [("pylate.models.Transformer", None), ("custom_st.Transformer", None), (None, "MultiVectorEncoder")],
)
def test_what_modules_json_describes_and_is_not_known_is_not_mean_pooling(tmp_path, first, kind):
    source = write_encoder(tmp_path / "source")
    modules, told = (read(source / name) for name in ("modules.json", "config_sentence_transformers.json"))
    modules[0]["type"] = first or modules[0]["type"]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "config_sentence_transformers.json").write_text(
        json.dumps({**told, **({"model_type": kind} if kind else {})})
    )
    with pytest.raises(QuietformerError, match=f"--for fastembed: modules.json describes a {first or kind}"):
        qf.export(source, tmp_path / "out", targets="fastembed", **small(source))
    if kind is None:
        return
    qf.export(source, tmp_path / "out", runtime="onnxruntime", **small(source))
    assert list(details(tmp_path / "out")) == ["onnxruntime", "optimum", "quietformer"]
    assert not (tmp_path / "out" / "modules.json").exists()
    exported = qf.OnnxModel(tmp_path / "out")
    assert exported(OTHER[0]).shape[1] == 32
    with pytest.raises(QuietformerError):
        exported.encode(OTHER)


def test_a_part_of_a_router_is_no_plain_encoder(tmp_path):
    write_model(tmp_path / "router" / "query_0_Transformer")
    router = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]
    (tmp_path / "router" / "modules.json").write_text(json.dumps(router))
    part = tmp_path / "router" / "query_0_Transformer"
    assert model_to_ship(qf.open_model(part), part).unknown_kind == "Router"
    (tmp_path / "router" / "modules.json").unlink()
    assert model_to_ship(qf.open_model(part), part).settings.pooling == ("mean",)


TOKENIZER_ALONE = ("fastembed", "text-embeddings-inference", "transformers.js")
"""Clients that read tokenizer.json, and of sentence-transformers' files at most the pooling."""


@pytest.fixture
def shipped(tmp_path):
    """An encoder whose files were changed, as it is known before an export."""
    source = write_encoder(tmp_path / "source")

    def made(file, **fields):
        (source / file).write_text(json.dumps(read(source / file) | fields))
        return model_to_ship(AutoModel.from_pretrained(source), source)

    return made


@pytest.mark.parametrize("name", TOKENIZER_ALONE)
@pytest.mark.parametrize(
    ("file", "field", "value", "says"),
    [
        ("1_Pooling/config.json", "include_prompt", False, "pools the tokens of prompts too"),
        ("sentence_bert_config.json", "do_lower_case", True, "does not read do_lower_case"),
    ],
)
def test_a_client_that_would_give_the_model_other_texts_refuses_it(shipped, name, file, field, value, says):
    (target,) = (one for one in every_target() if one.name == name)
    assert target.refusal(shipped(file, **{field: not value})) == ""
    assert says in target.refusal(shipped(file, **{field: value}))


@pytest.mark.parametrize("lowers", [normalizers.Lowercase(), normalizers.BertNormalizer(lowercase=True)])
@pytest.mark.parametrize("others", [[], [normalizers.NFC()]])
def test_a_tokenizer_that_writes_lower_case_itself_suits_every_client(shipped, lowers, others):
    model = shipped("sentence_bert_config.json", do_lower_case=True)
    path = model.origin / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.normalizer = normalizers.Sequence([*others, lowers]) if others else lowers
    tokenizer.save(str(path))
    assert [target.refusal(model) for target in every_target() if target.name in TOKENIZER_ALONE] == ["", "", ""]


def test_clients_that_put_no_prompt_before_texts_say_so(encoder):
    told = details(encoder)
    for name in ("fastembed", "transformers.js"):
        assert 'It puts no prompt before texts; write it there yourself: "find: " (query).' in told[name]["note"]
        assert told[name]["note"] in (encoder / "README.md").read_text()
    assert "`prompt_name`: `query`, `passage`" in told["text-embeddings-inference"]["note"]


def test_every_kind_of_target_has_its_own_name():
    assert len(set(NAMES)) == len(NAMES)
    assert {"sentence-transformers", "transformers.js", "optimum", "openvino", "fastembed", "onnxruntime"} <= set(NAMES)


def test_a_classifier_gives_what_torch_gives_in_fp32(classified, classifier):
    tokenizer = AutoTokenizer.from_pretrained(classified)
    model = AutoModelForSequenceClassification.from_pretrained(classified).eval()
    with torch.no_grad():
        wanted = [model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0] for text in OTHER]
    exported = qf.OnnxModel(classifier, file="model_fp32.onnx")
    torch.testing.assert_close(exported(OTHER, batch_size=2), torch.stack(wanted), atol=1e-5, rtol=1e-4)
    assert exported.labels == list(LABELS.values())


def test_a_folder_is_replaced_only_when_asked_and_keeps_what_is_not_ours(classified, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(QuietformerError, match="exists already; choose another folder or pass --overwrite"):
        qf.export(classified, out, **small(classified))
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    (out / "modules.json").write_text("[]")
    qf.export(classified, out, runtime="onnxruntime", overwrite=True, **small(classified))
    assert (out / "model.safetensors").read_bytes() == b"mine"
    assert not (out / "modules.json").exists()
    (out / "model.onnx").write_bytes(b"an earlier graph")
    assert "model*.safetensors*" in stale_files(out)


def test_an_export_that_is_interrupted_leaves_nothing(source, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("quietformer.deployment.targets.fastembed.FastembedTarget.code", interrupted)
    with pytest.raises(KeyboardInterrupt):
        qf.export(source, tmp_path / "out", runtime="onnxruntime", **small(source))
    assert list(tmp_path.iterdir()) == []


def test_the_longest_text_is_what_the_model_has_positions_for():
    config = RobertaConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=20, pad_token_id=1,
    )  # fmt: skip
    model = RobertaModel(config).eval()
    longest = model_to_ship(model, None).max_length
    with torch.no_grad():
        model(input_ids=torch.full((1, longest), 5))
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            model(input_ids=torch.full((1, longest + 1), 5))


def test_a_language_model_whose_class_ends_in_model_is_no_feature_extractor():
    shipped = model_to_ship(build("gpt2"), None)
    assert shipped.class_name == "GPT2LMHeadModel"
    assert optimum_class(shipped) == "CausalLM"
    assert pipeline_of(shipped) == "text-generation"
