"""Two processes: the same losses as one with the same batch, and models sharded between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.training.recipes import tiny, write_prose

OURS = {"normalizer": "clipped_softmax(alpha=2, warmup_steps=8)", "gate": "linear(pi_init=0.5)"}


def run(recipe, out, processes, *changes):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    command = [sys.executable, *launcher, "-m", "quietformer", "train", recipe, "--out", out]
    for change in changes:
        command += ["--set", change]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "figures.json").read_text())


def losses(figures):
    return [row["loss"] for row in figures["log"] if "loss" in row]


@pytest.fixture
def recipe(tmp_path):
    fields = tiny(
        "masked", write_prose(tmp_path / "text.txt"), attention=OURS, model={"dropout": 0.0},
        training={"steps": 12, "batch_size": 8, "save_every": 4, "log_every": 1},
    )  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(fields))
    return tmp_path / "recipe.yaml"


def test_two_processes_have_the_losses_of_one(recipe, tmp_path):
    one, two = run(recipe, tmp_path / "one", 1), run(recipe, tmp_path / "two", 2)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    assert two["validation"]["nll"] == pytest.approx(one["validation"]["nll"], rel=1e-5)
    ours, theirs = (load_file(tmp_path / name / "quietformer.safetensors") for name in ("one", "two"))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-5)


def test_a_sharded_model_trains_saves_loads_and_goes_on(recipe, tmp_path):
    one = run(recipe, tmp_path / "one", 1)
    sharded = run(recipe, tmp_path / "sharded", 2, "trainer.fsdp=true")
    assert losses(sharded) == pytest.approx(losses(one), rel=1e-5)
    whole = load_file(tmp_path / "sharded" / "quietformer.safetensors")
    # Back to the checkpoint of step 8, and on from there.
    for path in ("figures.json", "config.json", "quietformer.safetensors"):
        (tmp_path / "sharded" / path).unlink()
    (tmp_path / "sharded" / "checkpoints" / "checkpoint-12").rename(tmp_path / "put-aside")
    again = run(recipe, tmp_path / "sharded", 2, "trainer.fsdp=true")
    assert losses(again) == losses(sharded)
    for name, value in load_file(tmp_path / "sharded" / "quietformer.safetensors").items():
        assert torch.equal(value, whole[name]), name


WORKER = """
import sys, torch
from pathlib import Path
from quietformer.training.lost_run import DivergenceError
from quietformer.config.recipe_files import read_recipe
from quietformer.training.run import train
from quietformer.training.trainer import QuietTrainer

loss = QuietTrainer.compute_loss

def poisoned(self, model, batch, *args, **kwargs):
    found = loss(self, model, batch, *args, **kwargs)
    return found * float("nan") if self.state.global_step == 3 and self.args.process_index == 1 and self.model.training else found

QuietTrainer.compute_loss = poisoned
try:
    train(read_recipe(sys.argv[1], changes=sys.argv[3:]), Path(sys.argv[2]))
except DivergenceError as error:
    sys.stdout.write(f"lost: {error}\\n")
"""


@pytest.mark.parametrize("changes", [[], ["trainer.fsdp=true"]], ids=["ddp", "fsdp"])
def test_a_loss_that_breaks_in_one_process_stops_them_all(recipe, tmp_path, changes):
    (tmp_path / "worker.py").write_text(WORKER)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    command = [sys.executable, *launcher, tmp_path / "worker.py", recipe, tmp_path / "run", *changes]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout.count("lost: the run diverged at step 4") == 2, done.stdout + done.stderr[-3000:]
