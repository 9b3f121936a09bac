"""Files are written whole or not at all, and what goes wrong is said by the name the user knows."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quietformer.errors import QuietformerError
from quietformer.files import check_free, check_new_place, check_place, clear_leftovers, whole_folder, write_text


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "figures.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path):
    path = tmp_path / "figures.json"
    code = f"from quietformer.files import write_text; from pathlib import Path; write_text(Path({str(path)!r}), 'x' * 10**6)"

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    # The signal that comes with the limit would end the process before it can say anything; Python ignores it.
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, preexec_fn=little_room
    )
    assert f"File too large: '{path}'" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


KILLING = """
import os, signal, sys
from pathlib import Path
from quietformer.files import whole_folder
import quietformer.files as files
if sys.argv[3] == "plain":
    files._exchange = lambda one, other: False  # a system without it
count = 0
def audit(event, args):
    global count
    if event in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "ctypes.dlsym"):
        count += 1
        if count == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(audit)
with whole_folder(Path(sys.argv[1])) as draft:
    (draft / "config.json").write_text("new")
    (draft / "weights").write_text("new")
"""


@pytest.mark.parametrize("system", ["exchange", "plain"])
def test_killed_at_any_operation_a_folder_is_the_old_one_or_the_new_one(tmp_path, system):
    """And the next look at it leaves nothing else there."""
    kinds, killed = set(), 0
    for number in range(1, 60):
        folder = tmp_path / str(number) / "model"
        folder.mkdir(parents=True)
        for name in ("config.json", "weights", "notes"):
            (folder / name).write_text("old")
        process = os.fork()
        if process == 0:
            os.execv(sys.executable, [sys.executable, "-c", KILLING, str(folder), str(number), system])
        status = os.waitpid(process, 0)[1]
        for left in folder.parent.glob(".*"):
            os.utime(left, (0, 0))
        if system == "exchange":
            assert folder.is_dir(), number
        clear_leftovers(folder)
        assert list(folder.parent.iterdir()) == [folder], number
        found = {(folder / name).read_text() for name in ("config.json", "weights")}
        assert len(found) == 1, (number, found)
        assert (folder / "notes").read_text() == "old"
        kinds |= found
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    assert killed > 5
    assert kinds == {"old", "new"}


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "notes").write_text("old")
    (tmp_path / "model").symlink_to("disk")
    with whole_folder(tmp_path / "model") as draft:
        (draft / "config.json").write_text("new")
    assert (tmp_path / "model").is_symlink()
    assert {path.name for path in (tmp_path / "disk").iterdir()} == {"notes", "config.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "model"}


def test_what_a_living_process_is_writing_is_left_alone(tmp_path):
    folder = tmp_path / "model"
    with whole_folder(folder) as draft:
        os.utime(draft, (0, 0))
        clear_leftovers(folder)
        assert draft.is_dir()
        (draft / "config.json").write_text("new")
    assert (folder / "config.json").read_text() == "new"


def test_a_folder_that_an_earlier_release_lost_between_two_renames_is_put_back(tmp_path):
    lost = tmp_path / ".model-old-abcd1234" / "model"
    lost.mkdir(parents=True)
    (lost / "config.json").write_text("old")
    os.utime(lost.parent, (0, 0))
    clear_leftovers(tmp_path / "model")
    assert (tmp_path / "model" / "config.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("quietformer.files.shutil.disk_usage", lambda place: usage._replace(free=3_000_000))
    check_free(tmp_path / "not" / "there", 3_000_000, "the model")
    with pytest.raises(QuietformerError, match=r"there: the model needs 5\.0 MB of disk space and 3\.0 MB are free"):
        check_free(tmp_path / "not" / "there", 5_000_000, "the model")


def _places(tmp_path):
    """Names at which nothing can be made, and a part of what is said of each."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nothing/here")
    (tmp_path / "null").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    return {
        "/dev/null": "is a device",
        tmp_path / "null": "is a device",
        tmp_path / "pipe": "is a pipe",
        tmp_path / "gone": "is a link to nothing",
        tmp_path / "loop": "loop",
        tmp_path / ("a" * 245): "is longer than",
        tmp_path / ("\u00e9" * 130): "is longer than",
        tmp_path / "zero\0byte": "zero byte",
    }


def test_what_is_no_place_for_a_file_or_a_folder_is_told_before_the_work(tmp_path):
    for path, message in _places(tmp_path).items():
        for check in (check_place, check_new_place):
            with pytest.raises(QuietformerError, match=message):
                check(Path(path))
        with pytest.raises(QuietformerError, match=message):
            write_text(Path(path), "x")
    with pytest.raises(QuietformerError, match="there is no folder"):
        check_place(tmp_path / "file" / "x")
    for inside in ("file", "file/x", "pipe/x"):
        with pytest.raises(QuietformerError, match=r"is a (file|pipe)"):
            check_new_place(tmp_path / inside)
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize(
    "check", [lambda folder: check_place(folder / "x"), lambda folder: check_new_place(folder / "x")]
)
def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(tmp_path, monkeypatch, check):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # of a user who may write everywhere it is always true
    with pytest.raises(QuietformerError, match="cannot be written to"):
        check(tmp_path)


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "report.json").write_text("old")
    (tmp_path / "report.json").symlink_to("disk/report.json")
    write_text(tmp_path / "report.json", "new")
    assert (tmp_path / "report.json").is_symlink()
    assert (tmp_path / "disk" / "report.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "report.json", "report.json"]
