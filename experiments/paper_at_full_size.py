"""Two optimizer steps of the paper's recipes at the full size of their models, and plans of those that do not fit.

    python -m experiments.paper_at_full_size [--only NAME,...]

Architecture, attention, sequence length, optimizer and schedule are the recipe's; the text is the built-in text with a
tokenizer trained on it, images are random, and a batch is two examples, since neither the paper's data nor its GPUs are here.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from quietformer.config.recipe_files import read_recipe
from quietformer.training.plan import plan
from quietformer.training.run import train

RUN = {
    "paper/bert-base": ("vanilla", "clipped-0.025", "mlp-4"),
    "paper/bert-6l": ("alpha-4",),
    "paper/opt-125m": ("vanilla", "linear-0.25-ln-decay"),
    "paper/opt-350m": ("gated",),
    "paper/vit-s16": ("linear-0.5-patch-norm",),
}
PLANNED = {"paper/opt-1.3b": ("vanilla", "gated"), "paper/opt-1.3b-gated-finetuning": ("gated",)}
SHORT = [
    "training.steps=2", "training.batch_size=2", "training.micro_batch=1", "training.keep=1", "training.log_every=1",
    "training.evaluate_every=0", "training.save_every=0", "data.validation=[]", "data.hold_out=2",
]  # fmt: skip
TEXT = ["data.train=embedded", "data.limit=3000", "tokenizer.pretrained=''"]


def random_images(folder: Path, classes: int) -> Path:
    """One image of every class: an ImageNet in shape alone."""
    draw = np.random.default_rng(0)
    for number in range(classes):
        place = folder / f"{number:04d}"
        place.mkdir(parents=True)
        Image.fromarray(draw.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(place / "0.png")
    return folder


def two_steps(name: str, variant: str, scratch: Path) -> dict[str, object]:
    changes = [*SHORT, *TEXT]
    if read_recipe(name).task == "images":
        changes = [*SHORT, f"data.train={random_images(scratch / 'images', 1000)}"]
    recipe = read_recipe(name, variant=variant, changes=changes)
    began = time.monotonic()
    report = train(recipe, scratch / "run")
    shutil.rmtree(scratch / "run")
    return {
        "recipe": name,
        "variant": variant,
        "parameters": report.parameters,
        "losses": [row["loss"] for row in report.log if "loss" in row],
        "seconds": round(time.monotonic() - began, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="recipes, separated by commas")
    wanted = list(filter(None, parser.parse_args().only.split(",")))
    rows: list[dict[str, object]] = []
    for name, variants in (RUN | PLANNED).items():
        for variant in variants if not wanted or name in wanted else ():
            if name in PLANNED:
                planned = plan(read_recipe(name, variant=variant), measure=False)
                rows.append(
                    {
                        "recipe": name,
                        "variant": variant,
                        "planned": planned.model.model_dump(),
                        "memory": planned.memory.model_dump(),
                    }
                )
            else:
                with tempfile.TemporaryDirectory() as scratch:
                    rows.append(two_steps(name, variant, Path(scratch)))
            print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
