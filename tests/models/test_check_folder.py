"""Model folders that are not what they say are refused before anything is built from them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers import ViTConfig, ViTModel

import quietformer as qf
from quietformer.data.text_batches import read_texts
from quietformer.errors import QuietformerError
from quietformer.files import LARGEST_JSON
from quietformer.models.check_folder import check_counts
from quietformer.models.origin import origin_of
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.training.model_building import build_model
from tests.commands import fails
from tests.tiny_models import build
from tests.training.recipes import tiny_recipe


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    place = tmp_path_factory.mktemp("originals")
    with silenced_transformers():
        build("bert").save_pretrained(place / "plain")
        build("bert").save_pretrained(place / "sharded", max_shard_size="20KB")
    model = build("bert")
    qf.apply_attention_(model, qf.AttentionSpec(gate=qf.LinearGate()))
    qf.save(model, place / "ours")
    return place


@pytest.fixture
def folders(originals, tmp_path):
    shutil.copytree(originals, tmp_path, dirs_exist_ok=True)
    return tmp_path


def rewrite(folder, change):
    """The same weights file with other tensors."""
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def as_integers(tensors):
    tensors["bert.encoder.layer.1.output.dense.weight"] = tensors["bert.encoder.layer.1.output.dense.weight"].view(
        torch.int32
    )


def as_infinite(tensors):
    tensors["bert.encoder.layer.1.output.dense.weight"][3, 4] = torch.inf


@pytest.mark.parametrize("name", ["plain", "ours"])
@pytest.mark.parametrize(
    ("change", "message"), [(as_integers, "real (ones|numbers)"), (as_infinite, "NaN or infinity")]
)
def test_weights_that_are_no_numbers_are_refused_everywhere(run, folders, name, change, message):
    rewrite(folders / name, change)
    with pytest.raises(QuietformerError, match=rf"encoder\.layer\.1\.output\.dense\.weight .*{message}"):
        qf.open_model(folders / name)
    assert re.search(message, fails(run, "convert", folders / name, folders / "out", "--gate", "mlp"))
    if name == "ours":
        with pytest.raises(QuietformerError, match=message):
            qf.load(folders / name)
    recipe = tiny_recipe("masked", "embedded", model={"pretrained": str(folders / name), "config": {}, "dropout": None})
    with pytest.raises(QuietformerError, match=message):
        build_model(recipe)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64])
def test_weights_with_other_names_on_disk_are_checked_as_well(tmp_path, dtype):
    """ViT keeps the names of an earlier release in its files."""
    model = ViTModel(
        ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=16)
    )
    model.save_pretrained(tmp_path)
    (name,) = [name for name in load_file(tmp_path / "model.safetensors") if name.endswith("query.weight")]
    assert name not in model.state_dict()
    rewrite(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(QuietformerError, match=r"query\.weight holds (I32|C64) numbers where real ones belong"):
        qf.open_model(tmp_path)


def test_small_numbers_without_a_place_for_their_scales_are_refused(folders):
    """transformers would take the weights as they are and leave the scales out."""

    def scaled(tensors):
        name = "bert.encoder.layer.1.output.dense.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.ones(1)

    rewrite(folders / "plain", scaled)
    with pytest.raises(QuietformerError, match="F8_E4M3 numbers, and the config has no place for their scales"):
        qf.open_model(folders / "plain")


def test_a_layer_more_than_the_config_says_is_no_model(folders):
    """transformers leaves it out in silence, and every number is another model's."""
    path = folders / "plain" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1}))
    with pytest.raises(QuietformerError, match=r"bert\.encoder\.layer\.1\..* a layer its config has no place for"):
        qf.open_model(folders / "plain")


def test_a_head_the_class_has_no_place_for_is_left_out(folders):
    path = folders / "plain" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["BertModel"]}))

    def with_pooler(tensors):
        tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"] = torch.zeros(32, 32), torch.zeros(32)

    rewrite(folders / "plain", with_pooler)
    assert type(qf.open_model(folders / "plain")).__name__ == "BertModel"


@pytest.mark.parametrize("count", [10**6, 2**70, -5])
def test_more_layers_than_any_model_has_are_refused_before_they_are_built(folders, count):
    path = folders / "plain" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": count}))
    with pytest.raises(QuietformerError, match="num_hidden_layers must lie between -1 and 4096"):
        qf.open_model(folders / "plain")


def test_a_damaged_shard_is_named(folders):
    shard = sorted((folders / "sharded").glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(QuietformerError, match=rf"{shard.name} is damaged or cut short: .*; fetch or save it again"):
        qf.open_model(folders / "sharded")


def test_a_tensor_of_another_shape_is_named_with_both(folders):
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    rewrite(folders / "plain", lambda tensors: tensors.update({name: tensors[name].T.contiguous()}))
    with pytest.raises(QuietformerError, match=rf"{name} has shape \(32, 64\) in the weights, .* \(64, 32\); correct"):
        qf.open_model(folders / "plain")


@pytest.mark.parametrize("name", ["plain", "ours"])
@pytest.mark.parametrize(
    ("change", "message"), [({"hidden_act": "gleu"}, "name 'gleu'"), ({"hidden_size": "big"}, "hidden_size")]
)
def test_a_config_that_builds_no_model_is_named_with_a_remedy(folders, name, change, message):
    path = folders / name / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(QuietformerError, match=rf"{message}.*; restore or correct its config\.json"):
        qf.open_model(folders / name)


@pytest.mark.parametrize("name", ["plain", "ours"])
@pytest.mark.parametrize("text", ["{", "[]", "\ufeff{}"])
def test_generation_settings_that_transformers_would_drop_in_silence_are_refused(folders, name, text):
    (folders / name / "generation_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(QuietformerError, match=r"generation_config\.json .*(restore|correct)"):
        qf.open_model(folders / name)


def test_json_larger_than_memory_is_not_read(folders):
    os.truncate(folders / "plain" / "config.json", 2 * LARGEST_JSON)
    with pytest.raises(QuietformerError, match=r"config\.json has .* MB, too much for JSON"):
        qf.open_model(folders / "plain")


def test_readers_are_silent_about_what_they_do(capsys):
    with silenced_transformers():
        list(tqdm(range(3)))
    assert capsys.readouterr().err == ""
    list(tqdm(range(3)))
    assert capsys.readouterr().err


def test_an_index_names_files_of_its_own_folder(folders):
    path = folders / "sharded" / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    shutil.copytree(folders / "sharded", folders / "other")
    tensor, file = next(iter(content["weight_map"].items()))
    for elsewhere in (f"../other/{file}", str(folders / "other" / file), "", 3):
        content["weight_map"][tensor] = elsewhere
        path.write_text(json.dumps(content))
        with pytest.raises(QuietformerError, match=r"not a file of the folder|not a weight index"):
            qf.open_model(folders / "sharded")


def make_socket(path):
    before = os.getcwd()
    os.chdir(path.parent)  # a socket's name has an upper limit
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(before)


UNREADABLE = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "symbolic links": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_file_is_not_read(run, folders, kind):
    """A pipe or a device would be read for ever."""
    text = folders / "text.txt"
    UNREADABLE[kind](text)
    with pytest.raises(QuietformerError, match=rf"{text} .*{kind}"):
        read_texts(text)
    images = folders / "images"
    images.mkdir()
    UNREADABLE[kind](images / "one.png")
    with silenced_transformers():
        build("vit").save_pretrained(folders / "vision")
    assert kind in fails(run, "inspect", folders / "vision", "--images", images)
    for name, file in (("ours", "quietformer.safetensors"), ("sharded", "tokenizer.json"), ("plain", "config.json")):
        path = folders / name / file
        path.unlink(missing_ok=True)
        UNREADABLE[kind](path)
        with pytest.raises(QuietformerError, match=rf"{file} .*{kind}"):
            qf.open_model(folders / name)


def test_the_causal_mask_that_early_gpt_folders_store_is_no_damage(tmp_path):
    model = build("gpt2")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    prefix = next(name for name in weights if "h.0." in name).partition("h.0.")[0]
    weights |= {f"{prefix}h.{layer}.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8) for layer in (0, 1)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    opened = qf.open_model(tmp_path)
    assert all(torch.equal(tensor, opened.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_layer_counted_from_the_end_is_no_number_of_layers():
    check_counts({"vision_feature_layer": -2, "num_hidden_layers": 2}, "config.json")
    with pytest.raises(QuietformerError, match="num_hidden_layers must lie between"):
        check_counts({"num_hidden_layers": -2}, "config.json")


@pytest.mark.parametrize("name", ["../x.gguf", "x y.gguf", "a--b.gguf", "./gone", "/gone/x.gguf"])
def test_a_name_that_the_hub_cannot_have_has_no_origin(name):
    model = build("bert")
    model.config.name_or_path = name
    assert origin_of(model) is None
