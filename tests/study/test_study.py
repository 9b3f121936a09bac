"""Studies carried out: killed and resumed, in processes, on a cluster; the same results whichever way."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from quietformer.config.options.study import CompareOptions, SweepOptions
from quietformer.errors import QuietformerError
from quietformer.results.study import StudyReport
from quietformer.results.trial import TrialReport
from quietformer.study.compare import compare
from quietformer.study.sweep import sweep as sweep_file
from tests.commands import fails
from tests.study.studies import read_report, results_of, write_recipe_file, write_study_file

GRID = {"optimizer.learning_rate": [1e-3, 2e-3], "variant": ["vanilla", "gated"]}


def carried_out(path, out, **options):
    return sweep_file(path, SweepOptions(out=out, **options))


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
    return path, results_of(folder / "whole")


def test_a_killed_sweep_resumes_and_computes_nothing_again(tmp_path):
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
    assert results_of(out) == results_of(tmp_path / "whole")


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
    assert f"{name} failed: its process was killed by signal 9" in " ".join(said.split())
    rows, trials = results_of(out)
    assert sum(row["runs"] for row in rows) == 2
    assert [one for one in trials if one["name"] != name] == [one for one in whole[1] if one["name"] != name]
    carried_out(path, out, retry=True)
    assert results_of(out) == whole


def test_processes_end_with_the_one_that_started_them(three, tmp_path):
    path, whole = three
    out = tmp_path / "orphans"
    process = sweep(path, out, "--jobs", 2)
    wait_for(lambda: list(out.glob("runs/*/recipe.yaml")))
    process.kill()
    process.communicate()
    wait_for(lambda: not subprocess.run(["pgrep", "-f", f"{out}/.tasks"], capture_output=True, check=False).stdout, 30)
    carried_out(path, out)
    assert results_of(out) == whole


def test_an_interrupted_sweep_saves_and_resumes_later(three, tmp_path):
    path, whole = three
    out = tmp_path / "stopped"
    process = sweep(path, out, "--jobs", 2)
    wait_for(lambda: finished(out))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "left; run the same command again to resume" in said
    carried_out(path, out, jobs=2)
    assert results_of(out) == whole


def test_a_run_that_fails_is_reported_and_the_others_continue(tmp_path):
    path = write_study_file(tmp_path, grid={"training.batch_size": [8, 100_000]})
    report = carried_out(path, tmp_path / "out")
    assert [row.runs for row in report.rows] == [1, 0]
    assert "larger than the data" in report.rows[1].failed[0]
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
    assert carried_out(path, tmp_path / "out").rows[0].runs == 0
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    assert carried_out(path, tmp_path / "out").rows[0].runs == 1


def test_text_that_changed_since_training_is_not_evaluated_on(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    text = tmp_path / "text.txt"
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, measures={"sequences": 9})
    text.write_text("\n".join(reversed(text.read_text().splitlines())))
    report = carried_out(path, tmp_path / "out")
    assert "the data has changed" in report.rows[0].failed[0]


def test_another_measure_uses_the_models_that_are_there(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    weights = next((tmp_path / "out").glob("runs/*/model.safetensors"))
    before = weights.stat().st_mtime_ns
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"], "bits": ["w8a8", "w4a4"]})
    report = carried_out(path, tmp_path / "out")
    assert weights.stat().st_mtime_ns == before
    assert [row.bits for row in report.rows] == ["w8a8", "w4a4"]
    assert report.rows[1].quantized.mean > report.rows[0].quantized.mean


@pytest.mark.parametrize("task", ["masked", "images"])
def test_compare_trains_quantizes_and_exports_every_variant(run, tmp_path, task):
    recipe = write_recipe_file(tmp_path, task)
    out = tmp_path / "out"
    options = ("--variants", "vanilla,gated", "--seeds", 1, "--sequences", 8, "--calibrations", 2, "--out", out)
    code, shown, error = run("compare", recipe, *options, "--json", tmp_path / "f.json")
    assert code == 0, error
    assert (tmp_path / "f.json").read_bytes() == (out / "study.json").read_bytes()
    report = read_report(out)
    for row in report.rows:
        own = TrialReport.read(out / "runs" / f"{row.at['variant']},seed=0" / "trial.json")
        assert own.result.fp32[report.primary] == row.fp32.mean
        assert row.real.mean == pytest.approx(row.quantized.mean, rel=0.2)
        assert row.at["variant"] in shown
    # The command of the report gives the same study.
    words = shlex.split(report.command)
    assert words[:3] == ["quietformer", "compare", str(recipe)]
    assert run(*words[1:])[0] == 0
    assert read_report(out).rows == report.rows
    assert (out / "report.html").is_file()
    assert (out / "runs" / "gated,seed=0" / "inspect.html").is_file()
    assert (out / "runs" / "gated,seed=0" / "int8" / "model.onnx").is_file()


def test_the_validation_of_a_study_is_that_of_its_run(tmp_path):
    """Over all of the validation data, perplexity is what the Trainer computed by its own way."""
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, measures={"sequences": 1000, "calibrations": 1})
    carried_out(path, tmp_path / "out")
    folder = next((tmp_path / "out" / "runs").iterdir())
    trained = json.loads((folder / "figures.json").read_text())["validation"]["perplexity"]
    assert TrialReport.read(folder / "trial.json").result.fp32.perplexity == pytest.approx(trained, rel=1e-4)


def test_a_process_that_somebody_else_interrupts_fails_alone(three, tmp_path):
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
    assert "their logs are in" in said
    # Before training listens, the signal itself kills the process; afterwards the run is saved first.
    assert f"{victim} failed: its process was" in " ".join(said.split())
    assert sum(row["runs"] for row in results_of(out)[0]) == 2


def test_a_report_that_lacks_something_is_measured_again(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    whole = carried_out(path, tmp_path / "out")
    (trial,) = finished(tmp_path / "out")
    weights = trial.with_name("model.safetensors").stat().st_mtime_ns
    trial.write_text(json.dumps({"key": json.loads(trial.read_text())["key"]}))
    assert carried_out(path, tmp_path / "out").rows == whole.rows
    assert trial.with_name("model.safetensors").stat().st_mtime_ns == weights


def test_other_threads_do_not_resume_in_the_same_folder(tmp_path):
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]})
    carried_out(path, tmp_path / "out")
    path = write_study_file(tmp_path, grid={"variant": ["vanilla"]}, threads=2)
    with pytest.raises(QuietformerError, match="1 threads a run, this study has 2; choose another --out"):
        carried_out(path, tmp_path / "out")


def test_missing_data_is_an_error_before_the_first_run(run, tmp_path):
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


def test_variants_may_be_given_one_by_one(run, tmp_path):
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


def test_compare_is_a_function_with_the_options_of_the_command(tmp_path):
    recipe = write_recipe_file(tmp_path)
    options = CompareOptions(
        variants="vanilla",
        seeds=1,
        set={"training.steps": 6},
        sequences=8,
        calibrations=1,
        real=False,
        out=tmp_path / "o",
    )
    report = compare(str(recipe), options)
    assert [run.result.steps for run in report.trials] == [6]
    assert report.study.measures.pages
    assert report.command.startswith(
        f"quietformer compare {recipe} --out {tmp_path / 'o'} --variants vanilla --seeds 1"
    )
    assert "--set training.steps=6" in report.command
    assert "--no-real" in report.command
    assert (tmp_path / "o" / "report.html").is_file()
    assert read_report(tmp_path / "o") == report


VERSION_1 = Path(__file__).parent / "version_1"


def test_a_study_of_the_first_release_is_resumed_and_nothing_is_run_again(tmp_path):
    """One run finished and one failed under version 1; a third is new."""
    study = yaml.safe_load((VERSION_1 / "study.yaml").read_text())
    study["grid"]["training.batch_size"].append(4)
    for name, text in (("recipe.yaml", (VERSION_1 / "recipe.yaml").read_text()), ("study.yaml", yaml.safe_dump(study))):
        (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    place, lost = out / "runs" / "batch_size=8,gated,seed=0", out / "failed"
    for folder in (place, lost):
        folder.mkdir(parents=True)
    (out / ".study").write_text("of the first release")
    old = (VERSION_1 / "trial.json").read_bytes()
    (place / "trial.json").write_bytes(old)
    (place / "recipe.yaml").write_bytes((VERSION_1 / "run.yaml").read_bytes())
    (lost / "batch_size=100000,gated,seed=0.json").write_bytes((VERSION_1 / "failed.json").read_bytes())
    report = carried_out(tmp_path / "study.yaml", out)
    assert sorted(path.name for path in place.iterdir()) == ["recipe.yaml", "trial.json"]
    assert (place / "trial.json").read_bytes() == old
    first, failed, new = report.trials
    told = json.loads(old)
    assert first.result.fp32.top1 == told["float"]["top1"]
    assert first.result.quantized["w4a4"].top1.mean == told["quantized"]["w4a4"]["top1"]["mean"]
    assert first.result.real.metrics.top1 == told["real"]["figures"]["top1"]
    assert first.result.outliers.kurtosis == told["outliers"]["kurtosis"]
    assert (first.result.task, told["task"]) == ("images", "image")
    assert failed.failed == json.loads((VERSION_1 / "failed.json").read_text())["failed"]
    assert new.result.steps == 12


def test_a_report_of_the_first_release_says_what_it_said():
    told = json.loads((VERSION_1 / "study.json").read_text())
    report = StudyReport.read(VERSION_1 / "study.json")
    assert report.sentence == told["sentence"]
    assert [row.at for row in report.rows] == [row["at"] for row in told["rows"]]
    assert [row.failed for row in report.rows] == [row["failed"] for row in told["rows"]]
    for row, old in zip(report.rows, told["rows"], strict=True):
        assert (None if row.fp32 is None else row.fp32.mean) == (old.get("float") or {}).get("mean")
        assert (None if row.real is None else row.real.mean) == (old.get("real") or {}).get("mean")
    assert len(report.tables()[0].rows) == len(told["rows"])
    assert StudyReport.from_fields(json.loads(report.to_json())) == report
