"""Digests of an exported folder's files, by which one that is missing or damaged is noticed before it runs."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

from quietformer.errors import CheckpointError, QuietformerWarning
from quietformer.files import digest_of

UNREAD = ("export.json", "README.md", "report.json", "report.html")
"""What no client reads, and the list itself."""
GRAPHS = (".onnx", ".data", ".xml", ".bin", ".safetensors")
"""How the names of graphs and weights end. A copy of a folder may leave out those of other runtimes."""
POINTER = b"version https://git-lfs"
"""How a file begins that git has left where a large one belongs."""


def digests_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that clients read, by its place in the folder."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: digest_of(path) for name, path in files.items() if name not in UNREAD}


def check_whole(folder: Path, graph: Path, told: object, remedy: str) -> None:
    """Refuse a folder that lacks what its graph needs, or whose graph is not the one that was written.

    Files beside the graph may be edited, so of these a warning is enough.
    """
    if not isinstance(told, dict) or not all(isinstance(one, str) for one in told.values()):
        raise CheckpointError(f"{folder / 'export.json'} has no usable list of files; {remedy}")
    check_pointer(graph)
    name = graph.relative_to(folder).as_posix() if graph.is_relative_to(folder) else ""
    weights = f"{name}.data" if graph.suffix == ".onnx" else f"{name.removesuffix('.xml')}.bin"
    for file, digest in told.items():
        mine = file in (name, weights)
        needed = mine or not file.endswith(GRAPHS)
        if needed and not _is_file(folder / file):
            raise CheckpointError(f"{folder} is not complete: it has no {file}; {remedy}")
        if needed:
            check_pointer(folder / file)
        if mine and digest not in (digest_of(folder / file), _with_line_feeds(folder / file)):
            raise CheckpointError(
                f"{folder / file} is damaged: it is not the file that was exported; {remedy}, or delete export.json if it was "
                "changed on purpose"
            )
        if not file.endswith(GRAPHS) and digest_of(folder / file) != digest:
            warnings.warn(
                f"{folder / file} is not as it was exported, so results may differ; if it was not changed on purpose, {remedy}",
                QuietformerWarning,
                stacklevel=2,
            )


def _with_line_feeds(path: Path) -> str:
    """The digest of text as it was before git on Windows rewrote its line ends; empty for binary files."""
    if path.suffix != ".xml":
        return ""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def check_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise CheckpointError(
                f"{path} is a pointer of git LFS, not the file itself; run `git lfs pull` in its folder"
            )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False
