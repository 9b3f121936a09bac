"""Models of recipes: their sizes, their weights, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM

import quietformer as qf
from quietformer.config.recipe import Recipe
from quietformer.models.open_any import resolve
from quietformer.training.model_building import build_model, build_shape

BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
PAIRS = {"train": {"path": "pairs.csv", "second": "hypothesis"}, "length": 16}


def recipe(task="masked", *, config=None, length=16, **fields):
    model = {"config": BERT if config is None else config, **fields.pop("model", {})}
    data = PAIRS if task == "pairs" else {"length": length}
    return Recipe(**{"task": task, "model": model, "data": data, "training": {"steps": 1}, **fields})


def same(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def masked_folder(tmp_path):
    """A masked model with gates, trained by somebody: weights that no seed gives."""
    model = build_model(recipe(attention={"gate": {"kind": "linear", "pi_init": 0.25}}), vocabulary=64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    qf.save(model, tmp_path / "masked")
    return tmp_path / "masked"


@pytest.mark.parametrize(
    ("task", "config", "name"),
    [
        ("masked", BERT, "BertForMaskedLM"),
        ("pairs", BERT, "BertForSequenceClassification"),
        ("causal", {"model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                    "word_embed_proj_dim": 32}, "OPTForCausalLM"),
        ("images", {"model_type": "vit", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                    "num_attention_heads": 4, "image_size": 16, "patch_size": 8}, "ViTForImageClassification"),
    ],
)  # fmt: skip
def test_the_task_decides_the_class(task, config, name):
    assert type(build_model(recipe(task, config=config), vocabulary=64)).__name__ == name


def test_weights_are_a_function_of_the_recipe():
    torch.manual_seed(1)
    one = build_model(recipe(seed=3), vocabulary=64)
    torch.manual_seed(2)
    assert same(one, build_model(recipe(seed=3), vocabulary=64))
    assert not same(one, build_model(recipe(seed=4), vocabulary=64))


def test_the_vanilla_recipe_is_transformers_own_model():
    torch.manual_seed(0)
    fields = {name: value for name, value in BERT.items() if name != "model_type"}
    theirs = BertForMaskedLM(BertConfig(**fields, vocab_size=64, max_position_embeddings=16))
    ours = build_model(recipe(), vocabulary=64)
    assert same(ours, theirs)
    assert ours.config._attn_implementation == "sdpa"


def test_the_data_decides_what_the_recipe_leaves_open():
    model = build_model(
        recipe("pairs", length=16),
        vocabulary=64,
        labels=["no", "yes", "maybe"],
        special_tokens={"pad_token_id": 5, "eos_token_id": 6, "mask_token_id": 7},
    )
    config = model.config
    assert (config.vocab_size, config.max_position_embeddings, config.num_labels) == (64, 16, 3)
    assert config.label2id == {"no": 0, "yes": 1, "maybe": 2}
    assert (config.pad_token_id, config.eos_token_id) == (5, 6)
    assert not hasattr(config, "mask_token_id")


def test_the_recipe_decides_what_it_gives():
    config = build_model(
        recipe(config=BERT | {"vocab_size": 99, "max_position_embeddings": 40, "pad_token_id": 3}),
        vocabulary=64,
        special_tokens={"pad_token_id": 5},
    ).config
    assert (config.vocab_size, config.max_position_embeddings, config.pad_token_id) == (99, 40, 3)


def test_dropout_and_init_std_reach_every_field_of_theirs():
    opt = {"model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
           "word_embed_proj_dim": 32, "layerdrop": 0.3}  # fmt: skip
    config = build_model(recipe("causal", config=opt, model={"dropout": 0.25, "init_std": 0.5}), vocabulary=64).config
    assert (config.dropout, config.attention_dropout, config.layerdrop, config.init_std) == (0.25, 0.25, 0.3, 0.5)
    gpt2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4}
    model = build_model(recipe("causal", config=gpt2, model={"dropout": 0.0, "init_std": 0.5}), vocabulary=64)
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    assert model.transformer.wte.weight.std().item() == pytest.approx(0.5, rel=0.1)


def test_positions_that_begin_after_the_padding_token_still_hold_the_whole_sequence():
    model = build_model(recipe(config=BERT | {"model_type": "roberta"}, length=16), vocabulary=64).eval()
    assert model(input_ids=torch.full((1, 16), 9)).logits.shape == (1, 16, 64)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        model(input_ids=torch.full((1, 17), 9))


def test_an_encoder_is_trained_causally_only_when_it_is_said_to_look_back():
    with pytest.raises(
        qf.QuietformerError, match=r"task 'causal' needs a decoder, and this bert model looks ahead; .*is_decoder"
    ):
        build_model(recipe("causal"), vocabulary=64)
    with pytest.raises(qf.QuietformerError, match="looks ahead"):
        build_model(recipe("causal", config={}, model={"pretrained": "minilm"}), vocabulary=64)
    model = build_model(recipe("causal", config=BERT | {"is_decoder": True}), vocabulary=64).eval()
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, -1] = 50
    assert torch.equal(model(input_ids=tokens).logits[:, :15], model(input_ids=changed).logits[:, :15])


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("masked", {"config": {"model_type": "brt"}}, "unknown model_type 'brt'; did you mean 'bert'"),
        ("masked", {"config": BERT | {"hiden_size": 8}}, "no 'hiden_size'; did you mean 'hidden_size'"),
        ("masked", {"config": BERT | {"hidden_size": "wide"}}, "model.config: .*hidden_size"),
        ("masked", {"config": BERT | {"hidden_size": 33}}, "cannot build this bert model: .*33"),
        ("images", {}, "no 'bert' model for task 'images'"),
        ("masked", {"config": BERT | {"vocab_size": 63}}, "ids up to 63, past the model's vocabulary of 63;"),
        ("masked", {"config": BERT | {"max_position_embeddings": 15}}, "16 tokens do not fit the model's 15 positions"),
        ("masked", {"config": {"hiden_size": 8}, "model": {"pretrained": "minilm"}}, "did you mean 'hidden_size'"),
        ("masked", {"config": {"num_hidden_layers": 3}, "model": {"pretrained": "minilm"}}, "no place for, .*layer.3"),
        ("masked", {"config": {"hidden_size": 192}, "model": {"pretrained": "minilm"}}, "lacks .* first 'bert.embeddings"),
        ("masked", {"config": {"model_type": "opt"}, "model": {"pretrained": "minilm"}}, "minilm is a 'bert'"),
        ("masked", {"config": BERT | {"num_hidden_layers": 10**8}}, "num_hidden_layers must lie between -1 and 4096"),
        ("masked", {"config": BERT | {"hidden_size": 2**70}}, "hidden_size must lie between"),
        ("masked", {"config": BERT | {"hidden_size": 10**8}}, "model take .*B and the machine has .* of memory"),
        ("masked", {"config": BERT | {"intermediate_size": 0}}, "would be empty"),
        ("masked", {"config": {}, "model": {"pretrained": "./nowhere"}}, "./nowhere is not a model folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_said_in_one_line(task, fields, message):
    with pytest.raises(qf.QuietformerError, match=message) as error:
        build_model(recipe(task, **fields), vocabulary=64)
    assert "\n" not in str(error.value)


def test_labels_that_contradict_the_recipe_are_refused():
    with pytest.raises(qf.QuietformerError, match=r"the data has 3 labels and .* says 2"):
        build_model(recipe("pairs", config=BERT | {"num_labels": 2}), vocabulary=64, labels=["a", "b", "c"])


def test_a_pretrained_encoder_keeps_its_weights_and_gets_a_fresh_head():
    task = recipe("pairs", config={}, model={"pretrained": "minilm"})
    model = build_model(task, labels=["a", "b", "c"])
    stored = load_file(Path(resolve("minilm")) / "model.safetensors")
    encoder = model.bert.state_dict()
    shared = encoder.keys() & stored.keys()
    assert encoder.keys() == shared
    assert all(torch.equal(encoder[name], stored[name]) for name in shared)
    assert model.classifier.weight.shape == (3, model.config.hidden_size)
    assert same(model, build_model(task, labels=["a", "b", "c"]))
    other = build_model(task.model_copy(update={"seed": 1}), labels=["a", "b", "c"])
    assert not torch.equal(model.classifier.weight, other.classifier.weight)


def test_pretrained_quiet_attention_stays_unless_the_recipe_says_otherwise(masked_folder):
    source = {"pretrained": str(masked_folder)}
    kept = build_model(recipe(config={}, model=source))
    assert same(kept, qf.load(masked_folder))
    clipped = {"normalizer": {"kind": "clipped_softmax", "gamma": -0.03}}
    changed = build_model(recipe(config={}, model=source, attention=clipped))
    assert {core.spec for _, core in qf.attention_cores(changed)} == {changed.config.quantization_config.spec.attention}
    assert all(core.gating is None for _, core in qf.attention_cores(changed))


def test_a_classifier_on_a_masked_model_of_ours_takes_over_encoder_and_gates(masked_folder):
    model = build_model(recipe("pairs", config={}, model={"pretrained": str(masked_folder)}), labels=["a", "b", "c"])
    source = qf.load(masked_folder).bert.state_dict()
    taken = model.bert.state_dict()
    fresh = taken.keys() - source.keys()
    assert fresh == {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(torch.equal(taken[name], source[name]) for name in source)
    assert any(".quiet." in name for name in source)


def test_a_head_for_other_labels_is_made_anew(tmp_path):
    build_model(recipe("pairs"), vocabulary=64, labels=["a", "b"]).save_pretrained(tmp_path / "two")
    model = build_model(recipe("pairs", config={}, model={"pretrained": str(tmp_path / "two")}), labels=["a", "b", "c"])
    assert model.classifier.weight.shape[0] == 3


def test_half_precision_files_are_trained_in_float32(tmp_path):
    build_model(recipe(), vocabulary=64).half().save_pretrained(tmp_path / "half")
    model = build_model(recipe(config={}, model={"pretrained": str(tmp_path / "half")}))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("attention", [{}, {"gate": {"kind": "linear", "pi_init": 0.25}}], ids=["vanilla", "gated"])
def test_on_the_meta_device_a_model_has_its_shape_and_no_weights(attention, masked_folder):
    for fields in ({"attention": attention}, {"config": {}, "model": {"pretrained": str(masked_folder)}}):
        real = build_model(recipe(**fields), vocabulary=64)
        with torch.device("meta"):
            empty = build_model(recipe(**fields), vocabulary=64)
        assert {p.device.type for p in empty.parameters()} == {"meta"}
        assert {name: p.shape for name, p in empty.named_parameters()} == {
            name: p.shape for name, p in real.named_parameters()
        }


def test_a_hub_model_that_is_not_here_is_built_on_meta_as_the_recipe_describes_it():
    absent = {"pretrained": "nobody/nothing-of-this-name"}
    with torch.device("meta"):
        assert build_model(recipe(model=absent, config=BERT)).config.hidden_size == 32
        with pytest.raises(qf.QuietformerError, match="not on this machine; describe it in"):
            build_model(recipe(model=absent, config={}))


def test_a_shape_can_have_fewer_layers():
    model = build_shape(recipe(config={}, model={"pretrained": "minilm"}), layers=1)
    assert len(model.bert.encoder.layer) == 1
