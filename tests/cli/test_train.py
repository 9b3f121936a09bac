"""`quietformer train` and `recipes`: what a person sees, and one line for every mistake."""

from __future__ import annotations

import errno
import json
import shutil

import pytest
import yaml

from quietformer.config.recipe import Source
from quietformer.config.recipe_files import built_in_recipes
from quietformer.data.text_sources import data_files, read_rows
from quietformer.errors import QuietformerError
from tests.commands import fails
from tests.training.recipes import tiny, write_prose


@pytest.fixture
def prose(tmp_path):
    return write_prose(tmp_path / "text.txt")


@pytest.fixture
def recipe(tmp_path, prose):
    def write(task="causal", **changes):
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(tiny(task, prose, **changes)))
        return path

    return write


def test_the_recipes_are_listed_and_shown(run, tmp_path):
    code, out, _ = run("recipes", "--json", tmp_path / "r.json")
    assert code == 0
    listed = json.loads((tmp_path / "r.json").read_text())["recipes"]
    assert [entry["name"] for entry in listed] == built_in_recipes()
    for name in built_in_recipes():
        assert name in out
    code, out, _ = run("recipes", "small/opt", "--variant", "gated")
    assert yaml.safe_load(out)["attention"]["gate"] == {
        "kind": "linear", "pi_init": 0.25, "scale": 1.0, "weight_std": None,
    }  # fmt: skip


def test_options_of_a_plan_go_with_a_plan(run, tmp_path):
    out = ("--out", tmp_path / "run")
    assert "--devices goes with --plan" in fails(run, "train", "small/opt", "--devices", 2, *out)
    assert "--measure goes with --plan" in fails(run, "train", "small/opt", "--no-measure", *out)
    assert fails(run, "train", "--plan", "--devices", 0) == "quietformer: plan: devices must be >= 1, got 0"
    assert not (tmp_path / "run").exists()


def test_a_run_shows_its_figures_and_the_other_commands_take_its_folder(run, recipe, tmp_path, prose):
    out = tmp_path / "run"
    code, shown, error = run("train", recipe(), "--out", out, "--json", tmp_path / "f.json")
    assert code == 0, error
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures == json.loads((out / "figures.json").read_text())
    assert f"validation perplexity {figures['validation']['perplexity']:.4g}" in shown
    assert "bigram model" in shown
    assert "step 12/12  loss" in error
    assert "FFN max" in error
    assert "step 6: validation perplexity" in error
    options = ("--texts", prose, "--sequences", 8, "--length", 16)
    assert run("inspect", out, *options, "--page", tmp_path / "p.html")[0] == 0
    assert (
        run("quantize", out, "--texts", prose, "--length", 16, "--sequences", 8, "--page", tmp_path / "q.html")[0] == 0
    )
    code, _, error = run("export", out, tmp_path / "onnx", "--texts", prose, "--length", 16, "--sequences", 8)
    assert code == 0, error
    # A checkpoint is a model folder as well.
    last = out / "checkpoints" / "checkpoint-8"
    assert run("inspect", last, out, *options, "--page", tmp_path / "p.html")[0] == 0


def test_the_same_folder_again_resumes_with_its_own_recipe(run, recipe, tmp_path):
    out = tmp_path / "run"
    assert run("train", recipe(), "--out", out)[0] == 0
    for name in ("figures.json", "config.json"):
        (out / name).unlink()
    shutil.rmtree(out / "checkpoints" / "checkpoint-12")
    code, _, error = run("train", "--out", out)
    assert code == 0
    assert "resuming from step 8" in error
    code, _, error = run("train", "--out", out)
    assert (code, "is finished; nothing to do" in error) == (0, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.train=nowhere.txt"], "nowhere.txt is not there; for a dataset of the hub write {dataset: nowhere.txt}"),
        (["data.train={dataset: no/such-dataset}"], "no/such-dataset cannot be read"),
        (["data.train={path: TEXT, text: words}"], "has no column 'words'; it has 'text'"),
        (["data.train=EMPTY"], "empty.txt is empty"),
        (["data.train=BLANK"], "no text"),
        (["data.train=digits"], "digits are images; a language model trains on text"),
        (["data.length=1000000"], "give more text or a smaller data.length"),
        (["data.hold_out=1000000"], "data.hold_out keeps 1000000 of them; give more data"),
        (["training.batch_size=1000000"], "training.batch_size 1000000 is larger than the data"),
        (["model.config.vocab_size=100"], "past the model's vocabulary of 100"),
        (["model.config.hidden_sise=100"], "did you mean 'hidden_size'"),
        (["model.config.model_type=optt"], "did you mean 'opt'"),
        (["model.config.num_attention_heads=5"], "cannot build this opt model"),
        (["model={pretrained: no-such-folder}"], "no-such-folder"),
        (["tokenizer.pretrained=no-such-tokenizer"], "no-such-tokenizer"),
        (["optimizer.name=adamww"], "adamww"),
        (["trainer.fdsp=true"], "did you mean 'fsdp'"),
        (["trainer.fsdp=true"], "shares a model among processes and there is one; start with torchrun"),
        (["trainer.report_to=wandb"], "wandb"),
        (["optimizer.name=galore_adamw"], "galore_adamw"),
        (["trainer.dataloader_num_workers=-1"], "must be a number from 0 on"),
        (["attention.gate=linear(pi_init=2)"], "pi_init must be < 1"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line_and_leaves_no_model(run, recipe, tmp_path, prose, changes, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n\n   \n")
    places = {"TEXT": prose, "EMPTY": tmp_path / "empty.txt", "BLANK": tmp_path / "blank.txt"}
    for word, place in places.items():
        changes = [change.replace(word, str(place)) for change in changes]
    options = [option for change in changes for option in ("--set", change)]
    assert message in fails(run, "train", recipe(), "--out", tmp_path / "run", *options)
    assert not (tmp_path / "run" / "config.json").exists()


def test_folders_that_hold_something_else_are_left_alone(run, recipe, tmp_path):
    assert "say where the run goes with --out DIR" in fails(run, "train", recipe())
    (tmp_path / "file").write_text("mine")
    assert "is a file; give the name of a folder" in fails(run, "train", recipe(), "--out", tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "is not a training run; choose another --out" in fails(run, "train", recipe(), "--out", tmp_path / "full")
    assert run("train", recipe(), "--out", tmp_path / "run")[0] == 0
    line = fails(run, "train", recipe(optimizer={"learning_rate": 2e-3}), "--out", tmp_path / "run")
    assert "another recipe (optimizer.learning_rate: 0.001 there, 0.002 here)" in line
    assert "has its recipe already" in fails(run, "train", "--out", tmp_path / "run", "--set", "seed=1")


def test_a_disk_that_is_too_small_is_noticed_before_and_during(run, recipe, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        assert "of disk space left and the run needs" in fails(run, "train", recipe(), "--out", tmp_path / "run")
    from quietformer.training import trainer

    write_tree = trainer.write_tree

    def full(path, tree):
        if "checkpoint-8" in str(path) and path.name.startswith("optimizer"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_tree(path, tree)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_tree", full)
        line = fails(run, "train", recipe(), "--out", tmp_path / "run")
    assert "No space left on device; the last whole checkpoint is" in line
    assert "checkpoint-4; make room and run the same command to resume" in line
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["checkpoint-4"]
    code, _, error = run("train", recipe(), "--out", tmp_path / "run")
    assert (code, "resuming from step 4" in error) == (0, True)


def test_a_plan_needs_no_folder_and_trains_nothing(run, recipe, tmp_path):
    code, out, _ = run("train", recipe(), "--plan", "--no-measure", "--json", tmp_path / "plan.json")
    assert code == 0
    figures = json.loads((tmp_path / "plan.json").read_text())
    assert figures["model"]["parameters"]["total"] > 0
    assert "parameters" in out
    assert not (tmp_path / "run").exists()


def test_every_kind_of_file_is_read(tmp_path):
    from datasets import Dataset

    texts = ["A first line, with a comma.", "A second one."]
    rows = Dataset.from_dict({"text": texts, "other": [1, 2]})
    rows.to_csv(tmp_path / "a.csv", index=False)
    rows.to_json(tmp_path / "a.jsonl")
    rows.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.tsv").write_text("text\tother\n" + "".join(f"{text}\t0\n" for text in texts))
    (tmp_path / "a.txt").write_text("\n".join(texts))
    for kind in ("csv", "jsonl", "parquet", "tsv", "txt"):
        for streaming in (False, True):
            found = read_rows(Source(path=str(tmp_path / f"a.{kind}")), {"text": "text"}, streaming=streaming)
            assert [row["text"] for row in found] == texts, kind
    with pytest.raises(QuietformerError, match="mixes csv and json and parquet and text files; name one kind"):
        data_files(str(tmp_path))
    assert data_files(str(tmp_path / "*.csv")) == [str(tmp_path / "a.csv")]
    (tmp_path / "a.xyz").write_text("?")
    with pytest.raises(QuietformerError, match="is of no kind that is read here"):
        data_files(str(tmp_path / "a.xyz"))
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(QuietformerError, match=r"bad\.parquet cannot be read"):
        read_rows(Source(path=str(tmp_path / "bad.parquet")), {"text": "text"})
