"""Writing files and folders so that no reader ever sees half of one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from quietformer.errors import QuietformerError, in_one_line

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and nothing is cleared
    fcntl = None  # type: ignore[assignment]

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of Linux's renameat2."""


JUST_NOW = 1.0
"""Seconds in which a draft may have been made and not locked yet."""

LARGEST_JSON = 2**28
"""Bytes; what is larger was written by mistake, and takes more memory than most machines have."""

MARK = 8
"""Characters that `tempfile` ends a name with."""

LONGEST_NAME = 255 - MARK - len("..-draft-")
"""Bytes of a name that leave room for its draft's."""

DRAFT = "draft"
"""Of `.NAME-draft-12345678`, what is being written; `.NAME-old-12345678` is what a folder held before, while it is replaced."""


def write_text(path: Path, text: str) -> None:
    """A file of text, in one step."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name beside the file, then rename; a link stays a link, and what it points to is replaced."""
    check_place(path)
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    clear_leftovers(path)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-{DRAFT}-", dir=path.parent)
    try:
        _mark_as_mine(handle)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.umask(umask := os.umask(0o022))
            os.chmod(draft, 0o666 & ~umask)
            os.replace(draft, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        if isinstance(error, OSError) and error.filename in (None, draft):
            raise OSError(error.errno, error.strerror, str(path)) from None  # by the name the user knows
        raise


def check_place(path: Path | None) -> None:
    """Whether a file can be written there, to be asked before the work rather than after.

    Whoever may rename in /dev would replace /dev/null itself.
    """
    if path is None:
        return
    _check_name(path)
    if path.is_dir():
        raise QuietformerError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise QuietformerError(f"there is no folder {path.parent} to write {path.name} into")
    if path.is_symlink() and not path.exists():
        raise QuietformerError(f"{path} is a link to nothing; give the name of a file")
    check_regular(path)
    _check_writable(path.parent)


def check_new_place(folder: Path) -> None:
    """Whether a folder can be made there, or is one that can be written to."""
    _check_name(folder)
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        is_folder = there.is_dir()
    except OSError as error:
        raise QuietformerError(f"{folder} cannot be made: {error.strerror}; give the name of a folder") from None
    if not is_folder:
        remedy = (
            "give the name of a folder" if there == folder else f"so {folder} cannot be made; choose another folder"
        )
        raise QuietformerError(f"{there} is {kind_of(there)}{';' if there == folder else ','} {remedy}")
    _check_writable(there)


def _check_name(path: Path) -> None:
    """A name that drafts beside it can have too."""
    for part in path.parts:
        if len(os.fsencode(part)) > LONGEST_NAME:
            raise QuietformerError(f"{part[:40]}... is longer than {LONGEST_NAME} bytes; give a shorter name")
    if "\0" in str(path):
        raise QuietformerError(f"{path} has a zero byte in it; give another name")


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK) or not _takes_files(folder):
        raise QuietformerError(f"{folder} cannot be written to; choose another place")


def _takes_files(folder: Path) -> bool:
    """Whether it is more than a view of the system, such as /sys: whoever may write anywhere learns that by trying only."""
    if not hasattr(os, "statvfs") or os.statvfs(folder).f_blocks:
        return True
    try:
        os.rmdir(tempfile.mkdtemp(dir=folder))
    except OSError:
        return False
    return True


def clear_no_file(path: Path) -> None:
    """Make room for a file of ours where something stands that is none: a folder, a pipe, a link to a device or to nothing."""
    if os.path.lexists(path) and not path.is_file():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


KINDS = ((stat.S_ISREG, "a file"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


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
        raise kind(f"{path} is {kind_of(path)}; give a file")


def kind_of(path: Path) -> str:
    """What stands at a path, in words."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return "a loop of links" if error.errno == errno.ELOOP else "a link to nothing"
    return next((name for test, name in KINDS if test(mode)), "a device")


def read_json(path: Path, missing: str, kind: type[QuietformerError] = QuietformerError) -> Any:
    """What a JSON file holds; `missing` is the message if it does not exist, `kind` the error for that and for damage."""
    check_regular(path, kind)
    try:
        if (size := path.stat().st_size) > LARGEST_JSON:
            raise kind(f"{path} has {size / 1e6:,.0f} MB, too much for JSON of a model or a report; restore the file")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise kind(missing) from None
    except QuietformerError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise kind(f"{path} cannot be read as JSON: {in_one_line(error)}; restore or correct the file") from None


@contextlib.contextmanager
def whole_folder(folder: Path, *, stale: tuple[str, ...] = ()) -> Iterator[Path]:
    """A draft beside the folder that takes its place only when everything is written, in one step.

    Files of the old folder are carried over, but for those the patterns call stale.
    """
    if folder.is_symlink():  # what it points to is replaced, and it stays a link
        folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(folder)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-{DRAFT}-", dir=folder.parent))
    try:
        with _mine(draft):
            yield draft
            _open_permissions(draft)
            if folder.exists():
                _carry_over(folder, draft, stale)
            for path in (*draft.rglob("*"), draft):
                sync(path)
            if not folder.exists():
                os.rename(draft, folder)
            elif not _exchange(draft, folder):
                _replace(draft, folder)
            sync(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Give two folders each other's name at once, so that at no moment there is none; False where the system cannot."""
    try:
        rename: Any = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def _replace(draft: Path, folder: Path) -> None:
    """The same in two steps; killed between them, the next command that looks for the folder puts it back."""
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    try:
        with _mine(old):
            os.rename(folder, old / folder.name)
            os.rename(draft, folder)
    except BaseException:
        if not folder.exists():
            os.rename(old / folder.name, folder)
        raise
    finally:
        if folder.exists():  # or it is the only copy
            shutil.rmtree(old, ignore_errors=True)


def clear_leftovers(path: Path) -> None:
    """What a killed process left beside a file or folder: what it replaced is put back if there is nothing, drafts go.

    What a living process is writing is locked, and stays.
    """
    begins = (f".{path.name}-", f"..{path.name}-{DRAFT}-")  # the latter: inside of a folder that is itself a draft
    try:
        beside = [name for name in os.listdir(path.parent) if name.startswith(begins)]
    except OSError:
        return
    for left in (path.parent / name for name in beside):
        before, _, mark = left.name.rpartition("-")
        replaced = before == f".{path.name}-old"
        abandoned = replaced or before == f".{path.name}-{DRAFT}" or before.startswith(begins[1])
        if len(mark) != MARK or not abandoned or _in_use(left):
            continue
        if replaced and (left / path.name).is_dir() and not path.exists():
            with contextlib.suppress(OSError):  # another process may have done it
                os.rename(left / path.name, path)
            if not path.exists():
                continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def _mine(folder: Path) -> Iterator[None]:
    """Locked as long as this process lives and is inside; the lock goes with the process, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        _mark_as_mine(handle)
        yield
    finally:
        os.close(handle)


def _mark_as_mine(handle: int) -> None:
    if fcntl is not None:
        with contextlib.suppress(OSError):  # file systems without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _in_use(path: Path) -> bool:
    """Whether a living process holds it; where locks are unknown nothing is taken for abandoned."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        if fcntl is None or time.time() - os.fstat(handle).st_mtime < JUST_NOW:
            return True
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Onto the disk, so that a rename does not arrive there before what was written."""
    with contextlib.suppress(OSError):  # some file systems cannot; the rename is still atomic for all but a power cut
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_free(place: Path, needed: int, what: str) -> None:
    """Whether so many bytes fit there, to be asked before the work rather than after."""
    free = shutil.disk_usage(existing(place)).free
    if free < needed:
        raise QuietformerError(
            f"{place}: {what} needs {needed / 1e6:,.1f} MB of disk space and {free / 1e6:,.1f} MB are free; "
            "make room or choose another place"
        )


def free_in_words(place: Path) -> str:
    """What is free where a file is to be written, for an error about it; nothing if that cannot be told."""
    try:
        return f"{shutil.disk_usage(existing(place)).free / 1e6:,.1f} MB free"
    except OSError:
        return ""


def existing(place: Path) -> Path:
    """The place, or the nearest folder above it that is there."""
    return next(path for path in (place, *place.absolute().parents) if path.is_dir())


def _open_permissions(draft: Path) -> None:
    """Temporary folders are private; a model folder is as readable as anything else the user writes."""
    os.umask(umask := os.umask(0o022))
    for path in (draft, *draft.rglob("*")):
        os.chmod(path, (0o777 if path.is_dir() else 0o666) & ~umask)


def _carry_over(old: Path, draft: Path, stale: tuple[str, ...]) -> None:
    """What is not ours to replace (a README, notes, reports) stays."""
    for entry in old.iterdir():
        if not (draft / entry.name).exists() and not any(fnmatch(entry.name, pattern) for pattern in stale):
            if entry.is_dir() and not entry.is_symlink():
                shutil.copytree(entry, draft / entry.name, symlinks=True)
            else:
                shutil.copy2(entry, draft / entry.name, follow_symlinks=False)
