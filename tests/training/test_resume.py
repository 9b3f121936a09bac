"""Killed at any moment, a run goes on from its last whole checkpoint and ends with bitwise the same weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from quietformer.errors import CheckpointError, QuietformerError
from quietformer.results.train import TrainReport
from quietformer.training.checkpoint_checks import usable_checkpoint
from quietformer.training.checkpoints import STAGING, last_checkpoint, whole_checkpoints
from quietformer.training.interrupt import StoppedError
from quietformer.training.run import train
from quietformer.training.run_folder import only_writer, recipe_in
from quietformer.training.trainer import QuietTrainer
from tests.told import Remembered
from tests.training.recipes import tiny, tiny_recipe, write_prose

KILLS = 30
OURS = {"normalizer": "clipped_softmax(alpha=2, warmup_steps=15)", "gate": "linear(pi_init=0.5)"}


def weights(run):
    return load_file(next(path for path in run.iterdir() if path.suffix == ".safetensors"))


def same_weights(one, other):
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_killed_thirty_times_it_ends_with_the_same_weights(tmp_path):
    """Dropout, gradient accumulation, a gamma warm-up, evaluation and outlier report all take part."""
    fields = tiny(
        "masked", write_prose(tmp_path / "text.txt"), attention=OURS,
        training={"steps": 20, "batch_size": 8, "micro_batch": 4, "save_every": 3, "evaluate_every": 7},
    )  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(fields))
    command = [sys.executable, "-m", "tests.training.killing", tmp_path / "recipe.yaml", tmp_path / "runs", KILLS, 0]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"kills {KILLS}" in done.stdout
    runs = [run for run in sorted((tmp_path / "runs").iterdir()) if run.name != "undisturbed"]
    for run in runs:
        assert same_weights(run, tmp_path / "runs" / "undisturbed"), run
        assert [
            path.name for path in (run / "checkpoints").iterdir() if path.name == STAGING and any(path.iterdir())
        ] == []


@pytest.fixture
def half_done(tmp_path, monkeypatch):
    """A run stopped after its second checkpoint, and one of the same recipe that was not."""
    recipe = tiny_recipe("causal", write_prose(tmp_path / "text.txt"), attention=OURS)
    train(recipe, tmp_path / "whole")

    class StopError(Exception):
        pass

    from quietformer.training import trainer

    publish = trainer.publish

    def stopping(run, name):
        publish(run, name)
        if name == "checkpoint-8":
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "publish", stopping)
        with pytest.raises(StopError):
            train(recipe, tmp_path / "part")
    return recipe, tmp_path / "part", tmp_path / "whole"


def test_a_run_that_was_stopped_goes_on(half_done):
    recipe, part, whole = half_done
    assert last_checkpoint(part).name == "checkpoint-8"
    report = train(recipe, part)
    assert same_weights(part, whole)
    steps = [row["step"] for row in report.log if "loss" in row]
    assert steps == [3, 6, 9, 12]


def test_half_a_checkpoint_is_not_taken_for_one(half_done):
    recipe, part, whole = half_done
    staged = part / "checkpoints" / STAGING / "checkpoint-12"
    staged.mkdir(parents=True)
    (staged / "config.json").write_text("{}")
    assert [path.name for path in whole_checkpoints(part)] == ["checkpoint-4", "checkpoint-8"]
    train(recipe, part)
    assert same_weights(part, whole)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(half_done):
    recipe, part, whole = half_done
    file = part / "checkpoints" / "checkpoint-8" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    told = Remembered()
    train(recipe, part, told)
    assert any(
        "optimizer.safetensors is not as it was written" in line and "checkpoint-4" in line for line in told.said
    )
    assert same_weights(part, whole)
    assert not list((part / "checkpoints").glob("*.damaged"))


def cut_short(folder):
    """A whole file whose tensors are shorter than the model's: fused kernels would read past their end."""
    states = load_file(folder / "optimizer.safetensors")
    with safe_open(folder / "optimizer.safetensors", framework="pt") as file:
        kept = file.metadata()
    short = {name: tensor[:1].clone() if tensor.dim() else tensor for name, tensor in states.items()}
    save_file(short, folder / "optimizer.safetensors", metadata=kept)


def endless(folder):
    states = load_file(folder / "optimizer.safetensors")
    with safe_open(folder / "optimizer.safetensors", framework="pt") as file:
        kept = file.metadata()
    states["1"] = torch.full_like(states["1"], torch.inf)
    save_file(states, folder / "optimizer.safetensors", metadata=kept)


def other_step(folder):
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"global_step": 7}))


def other_schedule(folder):
    shutil.copy(folder.with_name("checkpoint-4") / "scheduler.safetensors", folder)


def no_random_states(folder):
    (folder / "random-0.safetensors").unlink()


def no_history(folder):
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"log_history": {"loss": "x"}}))


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "of an earlier release"])
def test_every_damage_to_a_checkpoint_is_found_before_a_step_is_taken(half_done, tmp_path, listed):
    """Of a checkpoint without a list of its files what is found depends on what its states must look like."""
    recipe, part, _ = half_done
    for damage in (cut_short, endless, other_step, other_schedule, no_random_states, no_history):
        run = shutil.copytree(part, tmp_path / damage.__name__)
        folder = run / "checkpoints" / "checkpoint-8"
        damage(folder)
        if not listed:
            (folder / "files.json").unlink()
        told = Remembered()
        try:
            found = usable_checkpoint(run, told)
            assert found.name == ("checkpoint-4" if told.said else "checkpoint-8")
            assert told.said or not listed, damage
            if not told.said:
                with pytest.raises(CheckpointError, match=r"checkpoint-8.* is damaged"):
                    train(recipe, run)
        finally:
            shutil.rmtree(run)


def test_without_a_whole_checkpoint_nothing_is_begun_anew_in_silence(half_done):
    recipe, part, _ = half_done
    for checkpoint in whole_checkpoints(part):
        (checkpoint / "config.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"checkpoint-8 is damaged: config.json is missing; no checkpoint before it"
    ):
        train(recipe, part)
    assert len(whole_checkpoints(part)) == 2


def test_a_finished_run_of_the_first_release_is_finished(half_done):
    """Its report had other names, and its recipe may too."""
    recipe, _, whole = half_done
    fields = json.loads((whole / "figures.json").read_text())
    del fields["version"]
    fields |= {"command": ["quietformer", "train"], "outliers": {"unknown": "no blocks"}}
    (whole / "figures.json").write_text(json.dumps(fields))
    report = train(recipe, whole)
    assert (report.version, report.command) == (2, "quietformer train")
    assert report.outliers_unknown == "no blocks"
    assert report.steps == 12


def test_two_processes_do_not_train_in_one_folder(half_done):
    recipe, part, _ = half_done
    with only_writer(part), pytest.raises(QuietformerError, match="another process is training in"):
        train(recipe, part)


def test_who_has_waited_for_another_process_looks_whether_it_has_finished(half_done):
    recipe, part, whole = half_done
    writing = threading.Event()

    def other():
        with only_writer(part):
            writing.set()
            time.sleep(1)
            shutil.copytree(whole, part, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))

    thread = threading.Thread(target=other)
    thread.start()
    writing.wait()
    told = Remembered()
    report = train(recipe, part, told)
    thread.join()
    assert any("finished by another process" in line for line in told.said)
    assert report == TrainReport.read(whole / "figures.json")


def test_data_that_has_changed_is_noticed(half_done, tmp_path):
    recipe, part, _ = half_done
    (tmp_path / "text.txt").write_text((tmp_path / "text.txt").read_text()[:-5000])
    with pytest.raises(QuietformerError, match="the data has changed since the run in"):
        train(recipe, part)


@pytest.mark.parametrize(
    "left", [".recipe.yaml-3vknwbpl", ".tokenizer-h98bjbty/vocab.json", "..model-li86wayt/config.json"]
)
def test_what_a_killed_start_left_is_cleared_away(tmp_path, left):
    recipe = tiny_recipe("causal", write_prose(tmp_path / "text.txt"), training={"steps": 2, "evaluate_every": 0})
    place = tmp_path / "run" / left
    place.parent.mkdir(parents=True)
    place.write_text("half of it")
    train(recipe, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")} <= {".lock"}


def test_a_start_that_failed_does_not_claim_the_folder(tmp_path):
    prose = write_prose(tmp_path / "text.txt")
    with pytest.raises(QuietformerError, match=r"data\.hold_out keeps"):
        train(tiny_recipe("causal", prose, data={"hold_out": 10**6}), tmp_path / "run")
    recipe = tiny_recipe("causal", prose, training={"steps": 2, "evaluate_every": 0}, tokenizer={"vocabulary": 320})
    train(recipe, tmp_path / "run")
    assert recipe_in(tmp_path / "run").tokenizer.vocabulary == 320


def test_asked_to_stop_it_saves_the_step_it_is_at(tmp_path, monkeypatch):
    recipe = tiny_recipe("causal", write_prose(tmp_path / "text.txt"), attention=OURS)
    train(recipe, tmp_path / "whole")
    step = QuietTrainer.training_step

    def interrupted(self, model, batch, count=None):
        if self.state.global_step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, model, batch, count)

    told = Remembered()
    with monkeypatch.context() as patch:
        patch.setattr(QuietTrainer, "training_step", interrupted)
        with pytest.raises(StoppedError, match="interrupted at step 6 of 12; the same command resumes"):
            train(recipe, tmp_path / "part", told)
    assert any("stopping after this step" in line for line in told.said)
    assert last_checkpoint(tmp_path / "part").name == "checkpoint-6"
    train(recipe, tmp_path / "part")
    assert same_weights(tmp_path / "part", tmp_path / "whole")
