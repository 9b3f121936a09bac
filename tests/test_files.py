"""Files are written whole or not at all, and what goes wrong is said by the name the user knows."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from quietformer.files import write_text


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
