"""How a graph with past keys and values is run by hand: prefill and then one token after another, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from quietformer.deployment.cache_names import POSITIONS

_LOOP = """\
new = tokens
for _ in range(32):
    length = tokens.shape[1]
    mask = np.ones((1, length), "int64")
    fed = {{"input_ids": new, "attention_mask": mask{positions}}}
    {step}
    new = {last}.argmax(-1)
    tokens = np.concatenate([tokens, new], 1)
text = tokenizer.decode(tokens[0])"""

_NO_PAST = """\
past = {
    one.name: np.zeros([1, one.shape[1], 0, one.shape[3]], "float32")
    for one in session.get_inputs()
    if one.name.startswith("past_key_values")
}
"""


def onnxruntime_loop(opened: str, place: str, inputs: Sequence[str]) -> str:
    """The caller keeps the past: every step takes it, and gives it back longer."""
    step = "logits, *present = session.run(None, fed | past)\n    past = dict(zip(past, present))"
    loop = _LOOP.format(positions=_positions(inputs), step=step, last="logits[:, -1:]")
    return f"import numpy as np\n{opened}{_tokens(place)}{_NO_PAST}{loop}"


def openvino_loop(opened: str, place: str, inputs: Sequence[str]) -> str:
    """The runtime keeps the past in the state of a request."""
    begin = "request = model.create_infer_request()\n"
    step = 'fed["beam_idx"] = np.zeros(1, "int32")\n    logits = request.infer(fed)[0]'
    loop = _LOOP.format(positions=_positions(inputs), step=step, last="logits[:, -1:]")
    return f"import numpy as np\n{opened}{begin}{_tokens(place)}{loop}"


def _tokens(place: str) -> str:
    return (
        f'from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained("{place}")\n'
        'tokens = tokenizer(["some text"], return_tensors="np")["input_ids"].astype("int64")\n'
    )


def _positions(inputs: Sequence[str]) -> str:
    return f', "{POSITIONS}": np.arange(length)[None, -new.shape[1]:]' if POSITIONS in inputs else ""
