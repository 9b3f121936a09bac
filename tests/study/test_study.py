"""Studies carried out: killed and gone on with, in processes, on a cluster; the same figures whichever way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from quietformer.config.study import read_study
from quietformer.errors import QuietformerError
from quietformer.study.run import run_study
from tests.commands import fails
from tests.study.studies import figures_of, write_recipe_file, write_study_file

GRID = {"optimizer.learning_rate": [1e-3, 2e-3], "variant": ["vanilla", "gated"]}


def carried_out(path, out, **options):
    return run_study(read_study(path), out, say=print, tell=lambda what, done, total: None, **options)


def sweep(path, out, *options):
    command = [sys.executable, "-m", "quietformer", "sweep", str(path), "--out", str(out), *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=path.parent)


def wait_for(what, seconds=300):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def finished(out):
    return sorted(out.glob("runs/*/trial.json"))


def state(out):
    """Every file of the finished runs, with the moment it was written."""
    return {path: path.stat().st_mtime_ns for one in finished(out) for path in one.parent.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A sweep of three runs, undisturbed, in this process."""
    folder = tmp_path_factory.mktemp("three")
    path = write_study_file(folder, grid={"variant": ["vanilla", "gated", "clipped"]})
    carried_out(path, folder / "whole")
    return path, figures_of(folder / "whole")


def test_a_killed_sweep_goes_on_and_computes_nothing_again(tmp_path):
    path = write_study_file(tmp_path, grid=GRID, seeds=[0, 1])
    out = tmp_path / "killed"
    process = sweep(path, out)
    wait_for(lambda: len(finished(out)) >= 4)
    process.kill()
    process.communicate()
    before = state(out)
    assert 4 <= len(finished(out)) < 8
    again = sweep(path, out)
    said, _ = again.communicate()
    assert again.returncode == 0, said
    assert {name: state(out)[name] for name in before} == before
    carried_out(path, tmp_path / "whole")
    assert figures_of(out) == figures_of(tmp_path / "whole")


def test_processes_give_the_same_figures_and_one_that_dies_is_reported(three, tmp_path):
    path, whole = three
    out = tmp_path / "processes"
    process = sweep(path, out, "--jobs", 2)
    tasks = lambda: sorted(out.glob(".tasks/*.json"))  # noqa: E731
    wait_for(tasks)
    victim = tasks()[0]

    def worker():
        found = subprocess.run(["pgrep", "-f", str(victim)], capture_output=True, text=True, check=False).stdout.split()
        return [int(pid) for pid in found]

    wait_for(worker)
    for pid in worker():
        os.kill(pid, signal.SIGKILL)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    name = victim.stem
    assert f"{name} failed: its process was ended by signal 9" in " ".join(said.split())
    rows, trials = figures_of(out)
    assert sum(row["runs"] for row in rows) == 2
    assert [one for one in trials if one["name"] != name] == [one for one in whole[1] if one["name"] != name]
    carried_out(path, out, retry=True)
    assert figures_of(out) == whole


def test_processes_end_with_the_one_that_started_them(three, tmp_path):
    path, whole = three
    out = tmp_path / "orphans"
    process = sweep(path, out, "--jobs", 2)
    wait_for(lambda: list(out.glob("runs/*/recipe.yaml")))
    process.kill()
    process.communicate()
    wait_for(lambda: not subprocess.run(["pgrep", "-f", f"{out}/.tasks"], capture_output=True, check=False).stdout, 30)
    carried_out(path, out)
    assert figures_of(out) == whole


def test_being_asked_to_stop_saves_and_goes_on_later(three, tmp_path):
    path, whole = three
    out = tmp_path / "stopped"
    process = sweep(path, out, "--jobs", 2)
    wait_for(lambda: finished(out))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "left; the same command goes on" in said
    carried_out(path, out, jobs=2)
    assert figures_of(out) == whole


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path):
    path = write_study_file(tmp_path, grid={"training.batch_size": [8, 100_000]})
    figures = carried_out(path, tmp_path / "out")
    assert [row["runs"] for row in figures["rows"]] == [1, 0]
    assert "larger than the data" in figures["rows"][1]["failed"][0]
    failed = next((tmp_path / "out" / "failed").glob("*100000*"))
    before = failed.stat().st_mtime_ns
    carried_out(path, tmp_path / "out")
    assert failed.stat().st_mtime_ns == before  # not tried again unless that is asked for
    carried_out(path, tmp_path / "out", retry=True)
    assert failed.stat().st_mtime_ns > before


def test_another_study_in_the_folder_is_refused_and_the_first_keeps_its_table(run, tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    before = {name: (tmp_path / "out" / name).read_bytes() for name in ("study.json", "study.yaml")}
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, set={"training.steps": 13})
    assert "training.steps: 12 there, 13 here); choose another --out" in fails(
        run, "sweep", path, "--out", tmp_path / "out"
    )
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before


def test_a_failure_of_another_recipe_does_not_count(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, set={"training.batch_size": 100_000})
    assert carried_out(path, tmp_path / "out")["rows"][0]["runs"] == 0
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    assert carried_out(path, tmp_path / "out")["rows"][0]["runs"] == 1


def test_text_that_changed_since_training_is_not_evaluated_on(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    text = tmp_path / "text.txt"
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, measures={"sequences": 9})
    text.write_text("\n".join(reversed(text.read_text().splitlines())))
    figures = carried_out(path, tmp_path / "out")
    assert "the data has changed" in figures["rows"][0]["failed"][0]


def test_another_measure_uses_the_models_that_are_there(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    weights = next((tmp_path / "out").glob("runs/*/model.safetensors"))
    before = weights.stat().st_mtime_ns
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"], "bits": ["w8a8", "w4a4"]})
    figures = carried_out(path, tmp_path / "out")
    assert weights.stat().st_mtime_ns == before
    assert [row["bits"] for row in figures["rows"]] == ["w8a8", "w4a4"]
    assert figures["rows"][1]["quantized"]["mean"] > figures["rows"][0]["quantized"]["mean"]


@pytest.mark.parametrize("task", ["masked", "images"])
def test_compare_trains_quantizes_and_exports_every_variant(run, tmp_path, task):
    recipe = write_recipe_file(tmp_path, task)
    out = tmp_path / "out"
    options = ("--variants", "vanilla,gated", "--seeds", 1, "--sequences", 8, "--calibrations", 2, "--out", out)
    code, shown, error = run("compare", recipe, *options, "--json", tmp_path / "f.json")
    assert code == 0, error
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures == json.loads((out / "study.json").read_text())
    for row in figures["rows"]:
        measure = row["primary"]
        own = json.loads((out / "runs" / f"{row['at']['variant']},seed=0" / "trial.json").read_text())
        assert own["float"][measure] == row["float"]["mean"]
        assert row["real"]["mean"] == pytest.approx(row["quantized"]["mean"], rel=0.2)
        assert row["at"]["variant"] in shown
    assert (out / "report.html").is_file()
    assert (out / "runs" / "gated,seed=0" / "inspect.html").is_file()
    assert (out / "runs" / "gated,seed=0" / "int8" / "model.onnx").is_file()


def test_the_validation_of_a_study_is_that_of_its_run(tmp_path):
    """Over all of the validation data, perplexity is what the Trainer computed by its own way."""
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, measures={"sequences": 1000, "calibrations": 1})
    carried_out(path, tmp_path / "out")
    folder = next((tmp_path / "out" / "runs").iterdir())
    trained = json.loads((folder / "figures.json").read_text())["validation"]["perplexity"]
    assert json.loads((folder / "trial.json").read_text())["float"]["perplexity"] == pytest.approx(trained, rel=1e-4)


def test_a_process_that_somebody_else_stops_fails_alone(three, tmp_path):
    path, _ = three
    out = tmp_path / "one-stopped"
    process = sweep(path, out, "--jobs", 2)
    wait_for(lambda: list(out.glob("runs/*/recipe.yaml")))
    victim = next(iter(sorted(out.glob("runs/*/recipe.yaml")))).parent.name
    (pid, *_) = subprocess.run(
        ["pgrep", "-f", str(out / ".tasks" / f"{victim}.json")], capture_output=True, text=True, check=False
    ).stdout.split()
    os.kill(int(pid), signal.SIGTERM)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert "how far each is stands in" in said
    # Before training listens the signal itself ends the process; after it the run is saved first.
    assert f"{victim} failed: its process was" in " ".join(said.split())
    assert sum(row["runs"] for row in figures_of(out)[0]) == 2


def test_a_file_of_figures_that_lacks_some_is_measured_again(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    whole = carried_out(path, tmp_path / "out")
    (trial,) = finished(tmp_path / "out")
    weights = trial.with_name("model.safetensors").stat().st_mtime_ns
    trial.write_text(json.dumps({"key": json.loads(trial.read_text())["key"]}))
    assert carried_out(path, tmp_path / "out")["rows"] == whole["rows"]
    assert trial.with_name("model.safetensors").stat().st_mtime_ns == weights


def test_other_threads_do_not_go_on_in_the_same_folder(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, threads=2)
    with pytest.raises(QuietformerError, match="1 threads a run, this study has 2; choose another --out"):
        carried_out(path, tmp_path / "out")


def test_data_that_is_not_there_is_told_before_the_first_run(run, tmp_path):
    for missing in ("nowhere.txt", str(tmp_path / "nowhere.txt")):
        path = write_study_file(tmp_path, grid={"data.train": [str(tmp_path / "text.txt"), missing]})
        assert f"there is no {missing}; set data.train.path" in fails(run, "sweep", path, "--out", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_a_run_whose_recipe_is_damaged_says_what_to_remove(run, tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    (recipe,) = (tmp_path / "out").glob("runs/*/recipe.yaml")
    recipe.write_text("[")
    assert f"remove {recipe.parent}" in fails(run, "sweep", path, "--out", tmp_path / "out")


def test_variants_may_be_said_one_by_one(run, tmp_path):
    recipe = write_recipe_file(tmp_path)
    given = ("--variants", "vanilla", "--variants", "gated,gatd", "--out", tmp_path / "o")
    assert "no variant 'gatd'" in fails(run, "compare", recipe, *given)
    assert "names with commas" in fails(run, "compare", recipe, "--variants", "", "--out", tmp_path / "o")


def test_mistakes_are_one_line(run, tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    assert "nowhere.yaml" in fails(run, "sweep", tmp_path / "nowhere.yaml")
    assert "not both" in fails(run, "sweep", path, "--jobs", 2, "--ray", "auto")
    assert "no variant 'gatd'" in fails(
        run, "compare", tmp_path / "recipe.yaml", "--variants", "gatd", "--out", tmp_path / "o"
    )
    assert "written like w8a8" in fails(
        run, "compare", tmp_path / "recipe.yaml", "--bits", "8", "--out", tmp_path / "o"
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    assert "holds other things" in fails(run, "sweep", path, "--out", tmp_path / "other")
    assert "no Ray cluster at 127.0.0.1:1" in fails(run, "sweep", path, "--ray", "127.0.0.1:1", "--out", tmp_path / "o")
    path.write_text(yaml.safe_dump({"recipe": "recipe.yaml"}))
    assert "grid" in fails(run, "sweep", path)
    assert not (tmp_path / "o").exists()


def test_two_do_not_write_into_one_study(tmp_path):
    from quietformer.training.run_folder import only_writer

    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    (tmp_path / "out").mkdir()
    with only_writer(tmp_path / "out"), pytest.raises(QuietformerError, match="another process"):
        carried_out(path, tmp_path / "out")
