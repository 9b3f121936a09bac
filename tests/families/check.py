"""What must hold for one architecture: parity, effect, causality, padding, save and load."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

import quietformer as qf
from quietformer.attention.core import plain_attention
from quietformer.attention.inject import all_configs
from quietformer.attention.normalizers import clipped_softmax as clipped
from quietformer.config.attention import gates, normalizers
from quietformer.errors import QuietformerError, SpecError, UnsupportedModelError
from quietformer.quant.calibration import calibrate_, dequantize_, quantize_

from .tiny import CannotBuild, TinyModel, tiny

EXACT = ("bert", "opt", "vit")
TOLERANCE = 1e-5
RELOAD_TOLERANCE = 1e-4
W16A16_TOLERANCE = 0.05
ROUNDING = 1e-6
HUGE = 1e30
"""Models mask logits with the dtype's minimum; such values say nothing about scale."""
OPEN, CLOSED = 40.0, -40.0
"""Gate biases at which the sigmoid is 1 and 0 to float32's precision."""
CLIPPED = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=1.0, keys="row"))
UNCLIPPED = qf.AttentionSpec(normalizer=qf.ClippedSoftmax(gamma=0.0, zeta=1.0))
GATED = qf.AttentionSpec(gate=qf.AllHeadsGate())
PER_HEAD = qf.AttentionSpec(gate=qf.LinearGate(pi_init=0.25))


@dataclass
class Verdict:
    """One row of the table."""

    name: str
    model_class: str = ""
    status: str = "failed"  # passed, refused, failed or not built
    reason: str = ""
    layers: int = 0
    parity: float | None = None
    fused: float = 0.0
    reload: float = 0.0
    causal: bool = False
    padding: bool = False
    per_head_gate: bool = False
    quantized: str = ""  # yes, or what does not hold
    weights: int = 0
    activations: int = 0
    w16a16: float | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


LIMIT = 240
"""Seconds for one architecture."""


def further_variants() -> dict[str, qf.AttentionSpec]:
    """Every registered normalizer and gate that has no check of its own below."""
    found = {name: qf.AttentionSpec(normalizer=normalizers[name]()) for name in normalizers if name != "softmax"}
    # Open enough to pass something on, shut enough to show.
    found |= {f"gate-{name}": qf.AttentionSpec(gate=gates[name](pi_init=0.25)) for name in gates}
    return found


def check_one(name: str, variants: bool = False) -> dict[str, Any]:
    """Runs in a worker process; a hang becomes a failed row."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def too_long(*_: object) -> None:
        raise TimeoutError(f"took more than {LIMIT} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT)
    started = time.monotonic()
    try:
        verdict = check(name, variants)
    except Exception as error:
        verdict = Verdict(name, reason=f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
    verdict.seconds = round(time.monotonic() - started, 1)
    return dataclasses.asdict(verdict)


class BrokenPropertyError(Exception):
    """A property that does not hold."""


def check(name: str, variants: bool = False) -> Verdict:
    """Try everything on a tiny random model of this architecture, or every further variant."""
    verdict = Verdict(name)
    try:
        built = tiny(name)
    except CannotBuild as error:
        verdict.status, verdict.reason = "not built", str(error)
        return verdict
    verdict.model_class = type(built.model).__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (_check_variants if variants else _check)(built, verdict)
        verdict.status = "passed"
    except UnsupportedModelError as error:
        verdict.status, verdict.reason = "refused", str(error)
    except BrokenPropertyError as error:
        verdict.reason = str(error)
    except Exception as error:
        verdict.reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return verdict


def _check(built: TinyModel, verdict: Verdict) -> None:
    built.model, reloads = settle(built.model, built.inputs, verdict)
    model, inputs = built.model, built.inputs
    for config in all_configs(model):
        # A part that was given no implementation computes eagerly, but gets no mask to do so: not a reference.
        config._attn_implementation_internal = "eager"
    reference = run(model, inputs)
    tolerance = 0.0 if built.name in EXACT else TOLERANCE

    qf.apply_attention_(model, qf.AttentionSpec())
    verdict.layers = sum(1 for _ in qf.attention_cores(model))
    verdict.parity = distance(_plainly(model, inputs), reference)
    require(verdict.parity <= tolerance, f"vanilla core differs from eager by {verdict.parity:.2e}")
    _check_fused(model, inputs, verdict)
    qf.apply_attention_(model, UNCLIPPED)
    require(
        (d := distance(_plainly(model, inputs), reference)) <= tolerance, f"gamma = 0 differs from eager by {d:.2e}"
    )
    _check_fused(model, inputs, verdict)

    qf.apply_attention_(model, CLIPPED)
    _check_fused(model, inputs, verdict)
    seen = _count_keys(model, inputs)
    moved = distance(run(model, inputs), reference) > TOLERANCE
    # A row with a single key has weight one, clipped or not; there only the closed gates below can tell.
    require(moved or max(seen, default=0) == 1, "clipping changes nothing: the core is not in use")
    _check_flow(built, verdict)
    if reloads:
        _check_reload(model, inputs, verdict)

    qf.apply_attention_(model, GATED)
    _hold_gates_(model, OPEN)
    require(
        (d := distance(_plainly(model, inputs), reference)) <= tolerance, f"open gates differ from eager by {d:.2e}"
    )
    _hold_gates_(model, CLOSED)
    require(distance(run(model, inputs), reference) > TOLERANCE, "closed gates change nothing: they are not in use")
    qf.apply_attention_(model, GATED)
    _check_flow(built, verdict)
    if reloads:
        _check_reload(model, inputs, verdict)
    try:
        qf.apply_attention_(model, PER_HEAD)
        run(model, inputs)
        verdict.per_head_gate = True
    except (SpecError, UnsupportedModelError) as error:
        verdict.notes.append(f"no per-head gate: {error}")

    try:
        _check_quantized(model, inputs, verdict, reloads=reloads)
        verdict.quantized = "yes"
    except (BrokenPropertyError, QuietformerError) as error:
        verdict.quantized = str(error)
        with contextlib.suppress(QuietformerError):
            dequantize_(model)
    qf.remove_attention_(model)
    require(distance(run(model, inputs), reference) == 0.0, "removing does not restore the original")


def _check_variants(built: TinyModel, verdict: Verdict) -> None:
    """Every normalizer and gate is in use, lets through what eager attention does, and is saved and loaded."""
    built.model, reloads = settle(built.model, built.inputs, verdict)
    model, inputs = built.model, built.inputs
    qf.apply_attention_(model, qf.AttentionSpec())
    reference = run(model, inputs)
    verdict.layers = sum(1 for _ in qf.attention_cores(model))
    lonely = max(_count_keys(model, inputs), default=0) == 1
    for name, spec in further_variants().items():
        try:
            qf.apply_attention_(model, spec)
        except SpecError as error:  # a width that the layer does not say, or that does not divide
            verdict.notes.append(f"no {name}: {error}")
            continue
        try:
            _check_fused(model, inputs, verdict)
            moved = distance(run(model, inputs), reference)
            require(math.isfinite(moved), "the output is not finite")
            require(moved > TOLERANCE or lonely, "it changes nothing: it is not in use")
            _check_flow(built, verdict)
            if reloads:
                _check_reload(model, inputs, verdict)
        except BrokenPropertyError as error:
            raise BrokenPropertyError(f"{name}: {error}") from None


def _plainly(model: Any, inputs: dict[str, Any]) -> Any:
    """One operation after the other, as eager attention computes."""
    with plain_attention():
        return run(model, inputs)


def _check_fused(model: Any, inputs: dict[str, Any], verdict: Verdict) -> None:
    """The ways that hold no weights give the same; blocks are used however short these inputs are."""
    usual, clipped.WORTH_BLOCKS = clipped.WORTH_BLOCKS, 0
    try:
        moved = distance(run(model, inputs), _plainly(model, inputs))
    finally:
        clipped.WORTH_BLOCKS = usual
    verdict.fused = max(verdict.fused, moved)
    require(moved <= TOLERANCE, f"attention without weights differs by {moved:.2e}")


def _check_quantized(model: Any, inputs: dict[str, Any], verdict: Verdict, *, reloads: bool) -> None:
    """Every weight and activation on a grid, calibrated, saved, and out again without a trace."""
    qf.apply_attention_(model, qf.AttentionSpec())
    before = _plainly(model, inputs)
    plan = quantize_(model, qf.QuantSpec(), inputs)
    require(distance(_plainly(model, inputs), before) == 0.0, "quantizers that let pass change the output")
    calibrate_(model, [inputs])
    after = run(model, inputs)
    require(math.isfinite(distance(after, before)), "the quantized output is not finite")
    require(distance(after, before) > 0.0, "quantizing changes nothing: the quantizers are not in use")
    if reloads:
        _check_reload(model, inputs, verdict)
    verdict.weights, verdict.activations = plan.count("weight"), plan.count("activation")
    # In 16 bits rounding is 256 times finer: what then remains would be something misplaced, not rounding.
    dequantize_(model)
    restored = distance(_plainly(model, inputs), before)
    require(restored == 0.0, "taking the quantizers out does not restore the original")
    quantize_(model, qf.QuantSpec(weight_bits=16, activation_bits=16), inputs)
    calibrate_(model, [inputs])
    verdict.w16a16 = distance(run(model, inputs), before)
    require(verdict.w16a16 <= W16A16_TOLERANCE, f"in 16 bits the output is off by {verdict.w16a16:.2e}")
    dequantize_(model)


def settle(model: Any, inputs: dict[str, Any], verdict: Verdict) -> tuple[Any, bool]:
    """The model as plain transformers saves and loads it, and whether it can.

    Loading recomputes some tensors (sinusoidal positions, padding rows); what it changes anyway is not ours to keep.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded, info = type(model).from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
        run(loaded, inputs)
        if info["missing_keys"] or info["unexpected_keys"]:
            raise ValueError(f"{len(info['missing_keys'])} missing, {len(info['unexpected_keys'])} unexpected tensors")
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        verdict.notes.append(f"save and load not tried: plain transformers does not reload it ({lines[0][:80]})")
        return model, False
    return loaded, True


def _check_flow(built: TinyModel, verdict: Verdict) -> None:
    """Where eager attention lets nothing pass from later or padded tokens, ours must not either."""
    model, key = built.model, built.text_key
    if key is None or key not in built.inputs or built.inputs[key].dim() != 2:
        return
    tokens = built.inputs[key]
    if tokens.is_floating_point() or len(tokens.unique()) < 2:
        return
    last = dict(built.inputs) | {key: change(tokens, -1)}
    if _leak(model, built.inputs, last, tokens.shape[1] - 1, eager=True) <= ROUNDING:
        verdict.causal = True
        leak = _leak(model, built.inputs, last, tokens.shape[1] - 1)
        require(leak <= ROUNDING, f"not causal: the last token moves earlier outputs by {leak:.2e}")
    if built.mask_key is None:
        return
    mask = torch.ones_like(tokens)
    mask[:, -2:] = 0
    padded = dict(built.inputs) | {built.mask_key: mask}
    other = padded | {key: change(tokens, -1)}
    if not verdict.causal and _leak(model, padded, other, tokens.shape[1] - 2, eager=True) <= ROUNDING:
        verdict.padding = True
        leak = _leak(model, padded, other, tokens.shape[1] - 2)
        require(leak <= ROUNDING, f"a padded token moves real outputs by {leak:.2e}")
    if verdict.causal and built.kind == "causal":
        mask = torch.ones_like(tokens)
        mask[:, :2] = 0  # left padding: causality alone would hide a mask that is ignored
        padded = dict(built.inputs) | {built.mask_key: mask}
        other = padded | {key: change(tokens, 0)}
        if _leak(model, padded, other, slice(2, None), eager=True) <= ROUNDING:
            verdict.padding = True
            leak = _leak(model, padded, other, slice(2, None))
            require(leak <= ROUNDING, f"a left-padded token moves real outputs by {leak:.2e}")


def _leak(model: Any, one: dict[str, Any], two: dict[str, Any], where: int | slice, *, eager: bool = False) -> float:
    """How far outputs at these positions differ between two inputs."""
    if eager:
        model = copy.deepcopy(model)
        qf.remove_attention_(model)
        try:
            run(model, one), run(model, two)
        except (RuntimeError, ValueError, IndexError):
            return float("inf")  # the model does not take such an input, ours or not
    positions = slice(0, where) if isinstance(where, int) else where
    length = next(value.shape[1] for value in one.values() if isinstance(value, Tensor) and value.dim() == 2)
    first, second = run(model, one), run(model, two)
    sequences = [name for name, tensor in first.items() if tensor.dim() >= 3 and tensor.shape[1] == length]
    if not sequences:
        return float("inf")  # nothing is ordered by tokens, so nothing can be asked
    return distance(
        {name: second[name][:, positions] for name in sequences},
        {name: first[name][:, positions] for name in sequences},
    )


def _check_reload(model: Any, inputs: dict[str, Any], verdict: Verdict) -> None:
    expected = run(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        qf.save(model, f"{folder}/model")
        loaded = qf.load(f"{folder}/model")
    before, after = model.state_dict(), loaded.state_dict()
    require(
        before.keys() == after.keys(), f"save and load change the tensors: {sorted(before.keys() ^ after.keys())[:3]}"
    )
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    require(not changed, f"save and load change the values of {changed[:3]}")
    # Equal bits at other addresses may take other kernels, so the output is held to rounding.
    d = distance(run(loaded, inputs), expected)
    verdict.reload = max(verdict.reload, d)
    require(d <= (0.0 if verdict.name in EXACT else RELOAD_TOLERANCE), f"save and load change the output by {d:.2e}")


def _count_keys(model: Any, inputs: dict[str, Any]) -> set[int]:
    """How many keys the layers attend over."""
    seen: set[int] = set()
    hooks = [
        core.taps["scores"].register_forward_hook(lambda _, args, __: seen.add(args[0].shape[-1]) and None)
        for _, core in qf.attention_cores(model)
    ]
    run(model, inputs)
    for hook in hooks:
        hook.remove()
    return seen


def _hold_gates_(model: Any, bias: float) -> None:
    with torch.no_grad():
        for _, core in qf.attention_cores(model):
            core.gating.weight.zero_()
            core.gating.bias.fill_(bias)


def run(model: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Every floating point tensor of the output, by name."""
    torch.manual_seed(0)
    with torch.no_grad():
        # Copied, since video models keep what they have seen in the session they are given.
        return dict(_tensors(model(**copy.deepcopy(inputs)), "output"))


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("attentions", "past_key_values"):
                yield from _tensors(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}.{index}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _tensors(vars(value), name)


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest value where that is above one."""
    if ours.keys() != theirs.keys():
        raise BrokenPropertyError(f"outputs differ in kind: {sorted(ours.keys() ^ theirs.keys())}")
    if not theirs:
        raise BrokenPropertyError("the model gives no floating point output")
    return max(_distance(ours[name], theirs[name]) for name in theirs)


def _distance(one: Tensor, two: Tensor) -> float:
    if one.shape != two.shape:
        raise BrokenPropertyError(f"shapes {tuple(one.shape)} and {tuple(two.shape)}")
    same = (one == two) | (one.isnan() & two.isnan())
    if bool(same.all()):
        return 0.0
    ordinary = two[two.abs() < HUGE]
    scale = max(1.0, float(ordinary.abs().max())) if ordinary.numel() else 1.0
    difference = torch.where(same, torch.zeros_like(one), (one - two).abs())
    return float(difference.nan_to_num(nan=float("inf")).max()) / scale


def change(tokens: Tensor, position: int) -> Tensor:
    """Another ordinary token at one position."""
    changed = tokens.clone()
    pool = tokens.unique()
    for row in range(tokens.shape[0]):
        changed[row, position] = pool[pool != tokens[row, position]][0]
    return changed


def require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenPropertyError(message)
