"""The command line: figures a person can read, the same as JSON, and one line for every mistake."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import sys

import pytest
import torch

import quietformer as qf
from quietformer.config.attention import gates, normalizers
from quietformer.models.silence_transformers import silenced_transformers
from tests.commands import fails
from tests.tiny_models import build, inputs, logits


@pytest.fixture
def folder(tmp_path):
    with silenced_transformers():
        build("bert").save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_variants_lists_everything_registered(run, tmp_path):
    code, out, _ = run("variants", "--json", tmp_path / "v.json")
    assert code == 0
    listing = json.loads((tmp_path / "v.json").read_text())
    assert [row["name"] for row in listing["normalizers"]] == list(normalizers)
    assert [row["name"] for row in listing["gates"]] == list(gates)
    for row in listing["normalizers"] + listing["gates"]:
        assert row["name"] in out
        assert row["meaning"]
        for field in row["fields"]:
            assert field["name"] in out
            assert field["meaning"], f"{row['name']}.{field['name']} has no description"


def test_convert_writes_a_folder_that_loads(run, folder, tmp_path):
    code, out, _ = run(
        "convert", folder, tmp_path / "out", "--attention", "clipped_softmax(gamma=-0.03)",
        "--gate", "linear(pi_init=0.25)", "--json", tmp_path / "c.json",
    )  # fmt: skip
    assert code == 0
    model = qf.load(tmp_path / "out")
    figures = json.loads((tmp_path / "c.json").read_text())
    assert figures["layers"] == 2
    assert figures["parameters_added"] == 2 * 4 * (8 + 1)
    assert f"{figures['parameters_added']:,} added" in out
    assert qf.AttentionSpec(**figures["attention"]) == qf.AttentionSpec(
        normalizer=qf.ClippedSoftmax(gamma=-0.03), gate=qf.LinearGate(pi_init=0.25)
    )
    assert logits(model, inputs("bert")).isfinite().all()


def test_convert_takes_our_own_folders_and_keeps_what_is_not_named(run, folder, tmp_path):
    assert run("convert", folder, tmp_path / "one", "--gate", "linear")[0] == 0
    assert run("convert", tmp_path / "one", tmp_path / "two", "--attention", "softmax1")[0] == 0
    one, two = qf.load(tmp_path / "one"), qf.load(tmp_path / "two")
    for (_, before), (_, after) in zip(qf.attention_cores(one), qf.attention_cores(two), strict=True):
        assert after.spec == qf.AttentionSpec(normalizer=qf.Softmax1(), gate=qf.LinearGate())
        assert torch.equal(before.gating.weight, after.gating.weight)
    code, out, _ = run("convert", tmp_path / "two", tmp_path / "three", "--gate", "none")
    assert code == 0
    assert "72 removed" in out
    assert next(qf.attention_cores(qf.load(tmp_path / "three")))[1].spec == qf.AttentionSpec(normalizer=qf.Softmax1())


def test_convert_is_reproducible_and_says_with_which_seed(run, folder, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run("convert", folder, tmp_path / name, "--gate", "mlp", "--seed", seed, "--json", tmp_path / f"{name}.json")
    weights = [(tmp_path / name / "quietformer.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert json.loads((tmp_path / "c.json").read_text())["seed"] == 1


def test_convert_replaces_a_model_only_when_told(run, folder, tmp_path):
    assert run("convert", folder, tmp_path / "out", "--attention", "softmax1")[0] == 0
    code, _, err = run("convert", folder, tmp_path / "out", "--gate", "linear")
    assert code == 2
    assert "--overwrite" in err
    assert run("convert", folder, tmp_path / "out", "--gate", "linear", "--overwrite")[0] == 0
    assert next(qf.attention_cores(qf.load(tmp_path / "out")))[1].spec.gate == qf.LinearGate()
    assert "is MODEL itself" in run("convert", folder, folder, "--gate", "linear", "--overwrite")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope'"),
        (["variants", "--jsn", "x"], "No such option: --jsn"),
        (["variants", "--json", "{tmp}/missing/v.json"], "there is no folder"),
        (["variants", "--json", "{tmp}"], "is a folder"),
        (["convert"], "Missing argument 'MODEL'"),
        (["convert", "{bert}", "{tmp}/o"], "nothing to change"),
        (["convert", "{bert}", "{tmp}/o", "--attention", "cliped_softmax"], "did you mean 'clipped_softmax'?"),
        (["convert", "{bert}", "{tmp}/o", "--attention", "clipped_softmax(gamma=0.1)"], "gamma must be <= 0, got 0.1"),
        (["convert", "{bert}", "{tmp}/o", "--attention", "clipped_softmax(gama=0.1)"], "did you mean 'gamma'?"),
        (["convert", "{bert}", "{tmp}/o", "--gate", "linear(pi_init=2)"], "pi_init must be < 1, got 2"),
        (["convert", "{bert}", "{tmp}/o", "--gate", "linear(("], "cannot read gate"),
        (["convert", "{tmp}/absent", "{tmp}/o", "--attention", "softmax1"], "is not there"),
        (["convert", "{tmp}/empty", "{tmp}/o", "--attention", "softmax1"], "has no config.json"),
        (["inspect", "{tmp}/pickled"], "quietformer convert"),
        (["convert", "{tmp}/evil", "{tmp}/o"], "holds more than tensors"),
        (["convert", "{tmp}/cut", "{tmp}/o", "--attention", "softmax1"], "model.safetensors is damaged or cut short"),
        (["convert", "{tmp}/wide", "{tmp}/o", "--attention", "softmax1"], "restore or correct its config.json"),
        (["convert", "{tmp}/deeper", "{tmp}/o", "--attention", "softmax1"], "would be random numbers"),
        (["convert", "nowhere", "{tmp}/o", "--attention", "softmax1"], "there is no folder 'nowhere' here"),
        (["convert", "{bert}", "{tmp}/empty/file", "--attention", "softmax1"], "is a file; give the name of a folder"),
        (
            ["convert", "{bert}", "{tmp}/o", "--json", "{tmp}/no/x.json", "--attention", "softmax1"],
            "there is no folder",
        ),
        (["convert", "{bert}", "{tmp}/o", "--attention", "linear"], "'linear' is a gate"),
        (["convert", "{bert}", "{tmp}/o", "--attention", "softmax1(x=1)"], "has no field 'x'; it has none"),
        (["convert", "{bert}", "{tmp}/o", "--attention", "clipped_softmax(alpha={{[]:1}})"], "cannot read normalizer"),
        (
            ["convert", "{bert}", "{tmp}/o", "--attention", "clipped_softmax(alpha=4, alpha=2)"],
            "cannot read normalizer",
        ),
        (["convert", "{bert}", "{tmp}/o", "--patch-norm"], "patch_embeddings"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(run, folder, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").write_text("x")
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text((folder / "config.json").read_text())
    torch.save(build("bert").state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    shutil.copytree(tmp_path / "pickled", tmp_path / "evil")
    torch.save(
        {"weight": type(tmp_path)("a class that only a full unpickler builds")}, tmp_path / "evil" / "pytorch_model.bin"
    )
    for name in ("cut", "wide", "deeper"):
        shutil.copytree(folder, tmp_path / name)
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for name, change in (("wide", {"hidden_size": "wide"}), ("deeper", {"num_hidden_layers": 3})):
        config = json.loads((folder / "config.json").read_text()) | change
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    code, out, err = run(*(argument.format(tmp=tmp_path, bert=folder) for argument in arguments))
    assert code == 2
    assert message in err
    assert len([line for line in err.splitlines() if line.strip()]) == 1, err
    assert err.startswith("quietformer: ")
    assert "Traceback" not in err + out
    assert not (tmp_path / "o").exists()


def test_no_arguments_shows_help_and_version_the_version(run):
    code, out, _ = run()
    assert code == 0
    assert "convert" in out
    assert run("--version")[1].strip() == qf.__version__


class PanicException(BaseException):
    """As libraries written in Rust raise it: no Exception."""


@pytest.mark.parametrize(
    "error",
    [RecursionError("deep"), MemoryError(), OverflowError("large"), Exception("bare"), PanicException("range"), KeyError("x")],
)  # fmt: skip
def test_what_nobody_has_recognised_is_one_line_too(run, monkeypatch, error):
    def broken():
        raise error

    monkeypatch.setattr("quietformer.workflows.listings.variants", broken)
    assert str(error) in fails(run, "variants")
    code, _, shown = run("variants", "--debug")
    assert code == 2
    assert "Traceback (most recent call last)" in shown
    assert "in broken" in shown


def test_an_error_does_not_drive_the_terminal(run, tmp_path):
    line = fails(run, "inspect", tmp_path / "a\x1b[31mred\u202e")
    assert "a\\x1b[31mred\\u202e" in line


def test_a_name_that_the_terminal_cannot_show_does_not_lose_the_result(run, folder, tmp_path, monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    assert run("convert", folder, tmp_path / "\u043c\u043e\u0434\u0435\u043b\u044c", "--gate", "linear")[0] == 0
    written.flush()
    assert rb"\u043c\u043e" in written.buffer.getvalue()


def test_a_reader_that_has_seen_enough_ends_the_command_as_it_ends_any_other(run, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    stdout = open(writer, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", stdout)
    code, _, error = run("variants")
    assert (code, error) == (128 + signal.SIGPIPE, "")
    with contextlib.suppress(BrokenPipeError):
        stdout.close()


@pytest.mark.parametrize("place", [None, "/dev/full"])
def test_an_error_that_nobody_can_read_has_its_exit_code_and_stays_out_of_the_output(run, tmp_path, monkeypatch, place):
    stderr = None if place is None else open(place, "w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", stderr)
    code, out, _ = run("inspect", tmp_path / "absent")
    assert (code, out) == (2, "")
    if stderr is not None:
        with contextlib.suppress(OSError):
            stderr.close()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, "Too many open files", "x"), "ulimit -n"),
        (RuntimeError("unable to open file <x>: Too many open files (24)"), "ulimit -n"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.EFBIG, "File too large"), "ulimit -f"),
    ],
)
def test_a_limit_of_the_system_is_no_damage(run, monkeypatch, error, remedy):
    def limited(*arguments):
        raise error

    monkeypatch.setattr("quietformer.workflows.listings.variants", limited)
    line = fails(run, "variants")
    assert remedy in line
    assert "damaged" not in line
