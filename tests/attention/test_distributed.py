"""DDP: two processes with gloo get the gradients of one process with the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

import quietformer as qf
from tests.tiny_models import VARIANTS, build, inputs

WORKER = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import quietformer as qf
from safetensors.torch import save_file
from tests.tiny_models import VARIANTS, build, inputs

rank, store, out, name = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
model, given = build("bert"), inputs("bert")
torch.manual_seed(0)
qf.apply_attention_(model, VARIANTS[name])
parallel = DistributedDataParallel(model)
parallel(**{key: value[rank : rank + 1] for key, value in given.items()}).logits.square().mean().backward()
if rank == 0:
    save_file({key: p.grad for key, p in model.named_parameters() if p.grad is not None}, out)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # taking torch's threads down at the interpreter's end has aborted a process that had done all of its work
"""


def test_two_processes_get_the_gradients_of_one(tmp_path):
    from safetensors.torch import load_file

    for name in ("both", "learned_sink"):
        out, store = tmp_path / f"{name}.safetensors", tmp_path / f"{name}.store"
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(rank), str(store), str(out), name],
                env=dict(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
            )
            for rank in range(2)
        ]
        assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
        model = build("bert")
        torch.manual_seed(0)
        qf.apply_attention_(model, VARIANTS[name])
        model(**inputs("bert")).logits.square().mean().backward()
        shared = load_file(out)
        expected = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        assert shared.keys() == expected.keys()
        for key, gradient in expected.items():
            torch.testing.assert_close(shared[key], gradient, rtol=1e-4, atol=1e-6)
