"""timm's ViT, in a process of its own: its torchvision does not import beside a CPU build of torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TIMM = os.environ.get("QUIETFORMER_TIMM", "")

SCRIPT = """
import sys, types, copy, pickle
for name in ("_meta_registrations", "_autograd_registrations"):
    sys.modules["torchvision." + name] = types.ModuleType("torchvision." + name)
import timm, torch
import quietformer as qf

torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5, depth=2).eval()
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0, 0.1)
images = torch.randn(2, 3, 32, 32)
def run(m=model):
    with torch.no_grad():
        return m(images)
reference, keys = run(), list(model.state_dict())
qf.apply_attention_(model, qf.AttentionSpec())
torch.testing.assert_close(run(), reference, rtol=1e-5, atol=1e-5)
qf.apply_attention_(model, qf.AttentionSpec(normalizer=qf.ClippedSoftmax(alpha=1.0), gate=qf.LinearGate()))
assert not torch.allclose(run(), reference)
assert len(list(qf.attention_cores(model))) == 2
assert torch.equal(run(copy.deepcopy(model)), run())
assert torch.equal(run(pickle.loads(pickle.dumps(model))), run())
model.train()(images).sum().backward()
assert all(p.grad.abs().sum() > 0 for _, c in qf.attention_cores(model) for p in c.parameters())
model.eval()
try:
    qf.save(model, sys.argv[1] + "/no")
except qf.QuietformerError as error:
    assert "not a transformers model" in str(error)
else:
    raise SystemExit("a bare timm model was saved")
qf.remove_attention_(model)
assert torch.equal(run(), reference) and list(model.state_dict()) == keys

# Wrapped by transformers it can be saved and loaded like any other model.
from transformers import TimmWrapperConfig, TimmWrapperForImageClassification
config = TimmWrapperConfig(architecture="vit_tiny_patch16_224", model_args={"img_size": 32, "depth": 2}, num_labels=5)
wrapped = TimmWrapperForImageClassification(config).eval()
qf.apply_attention_(wrapped, qf.AttentionSpec(normalizer=qf.ClippedSoftmax(gamma=-0.03), gate=qf.MLPGate()))
qf.save(wrapped, sys.argv[1] + "/vit")
with torch.no_grad():
    assert torch.equal(qf.load(sys.argv[1] + "/vit")(images).logits, wrapped(images).logits)

# Its layers are seen as timm's own, so that what they compute is put on grids too.
plan = qf.quantize_(wrapped, qf.QuantSpec(), {"pixel_values": images})
sites = {site.name for site in plan.sites}
for name, module in wrapped.named_modules():
    if isinstance(module, timm.layers.Attention):
        assert {f"{name}:scores", f"{name}:context", f"{name}.qkv:weight", f"{name}.proj:weight"} <= sites
print("timm", timm.__version__, "holds")
"""


@pytest.mark.skipif(not TIMM, reason="timm is installed apart by `make test`, which names the place")
def test_timm_vit(tmp_path):
    environment = dict(os.environ) | {"PYTHONPATH": TIMM}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "holds" in run.stdout
