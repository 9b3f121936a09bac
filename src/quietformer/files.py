"""Writing files and folders so that no reader ever sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from quietformer.errors import QuietformerError, in_one_line


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name beside the file, then rename."""
    check_place(path)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.umask(umask := os.umask(0o022))
        os.chmod(draft, 0o666 & ~umask)
        os.replace(draft, path)
    except BaseException as error:
        os.unlink(draft)
        if isinstance(error, OSError) and error.filename in (None, draft):
            raise OSError(error.errno, error.strerror, str(path)) from None  # by the name the user knows
        raise


def check_place(path: Path | None) -> None:
    """Whether a file can be written there, to be asked before the work rather than after."""
    if path is not None and path.is_dir():
        raise QuietformerError(f"{path} is a folder; give the name of a file")
    if path is not None and not path.parent.is_dir():
        raise QuietformerError(f"there is no folder {path.parent} to write {path.name} into")


KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def check_regular(path: Path, kind: type[QuietformerError] = QuietformerError) -> None:
    """Refuse what would be read for ever, or not at all: pipes, devices, sockets, loops of links; what is not there passes."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise kind(f"{path} is a link to nothing; give a file") from None
        return
    except (OSError, ValueError) as error:  # a loop of links, no permission, a zero byte in the name
        raise kind(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode):
        raise kind(f"{path} is {next((name for test, name in KINDS if test(mode)), 'a device')}; give a file")


def read_json(path: Path, missing: str, kind: type[QuietformerError] = QuietformerError) -> Any:
    """What a JSON file holds; `missing` is the message if it does not exist, `kind` the error for that and for damage."""
    check_regular(path, kind)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise kind(missing) from None
    except (OSError, ValueError, RecursionError) as error:
        raise kind(f"{path} cannot be read as JSON: {in_one_line(error)}") from None


@contextlib.contextmanager
def whole_folder(folder: Path, *, stale: tuple[str, ...] = ()) -> Iterator[Path]:
    """A draft beside the folder that takes its place only when everything is written.

    Files of the old folder are carried over, but for those the patterns call stale.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield draft
        _open_permissions(draft)
        if folder.exists():
            _carry_over(folder, draft, stale)
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            try:
                os.rename(folder, old / folder.name)
                os.rename(draft, folder)
            except BaseException:
                if not folder.exists():
                    os.rename(old / folder.name, folder)
                raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _open_permissions(draft: Path) -> None:
    """Temporary folders are private; a model folder is as readable as anything else the user writes."""
    os.umask(umask := os.umask(0o022))
    for path in (draft, *draft.rglob("*")):
        os.chmod(path, (0o777 if path.is_dir() else 0o666) & ~umask)


def _carry_over(old: Path, draft: Path, stale: tuple[str, ...]) -> None:
    """What is not ours to replace (a README, notes, reports) stays."""
    for entry in old.iterdir():
        if not (draft / entry.name).exists() and not any(fnmatch(entry.name, pattern) for pattern in stale):
            (shutil.copytree if entry.is_dir() else shutil.copy2)(entry, draft / entry.name)
