"""Trains in child processes and kills them with SIGKILL, over and over, until the run is finished.

    python -m tests.training.killing RECIPE OUT KILLS SEED

Half of the kills strike a random file operation of the run folder (opening, renaming, removing: the inside of saving), half a
random moment. Children are forked from one process that has imported everything, so a start costs nothing.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from quietformer.config.recipe_files import read_recipe
from quietformer.training.run import train

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")


def child(recipe: str, out: Path, strike_at: int | None) -> None:
    count = 0

    def audit(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if event in EVENTS and str(out) in str(args[0]):
            count += 1
            if count == strike_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    train(read_recipe(recipe), out)
    print(f"file operations {count}", flush=True)


def attempt(recipe: str, out: Path, strike_at: int | None, after: float | None) -> bool:
    """Whether the child came to its end."""
    if (pid := os.fork()) == 0:
        try:
            child(recipe, out, strike_at)
        except BaseException as error:
            print(f"failed: {type(error).__name__}: {error}", flush=True)
            os._exit(3)
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"a child failed with {os.WEXITSTATUS(status)}")
    return os.WIFEXITED(status)


def main() -> None:
    recipe, out, kills, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    draw = random.Random(seed)
    began = time.monotonic()
    attempt(recipe, out / "undisturbed", None, None)
    whole = time.monotonic() - began
    done, folder, number = 0, out / "0", 0
    while done < kills:
        by_file = done % 2 == 0
        finished = attempt(
            recipe, folder,
            # Early operations are those of every start; late ones may lie past the end, and then the run just ends.
            draw.randint(1, 120) if by_file else None,
            None if by_file else draw.uniform(0, whole),
        )  # fmt: skip
        if finished:
            number += 1
            folder = out / str(number)
        else:
            done += 1
    attempt(recipe, folder, None, None)
    print(f"kills {done} runs {number + 1}", flush=True)


if __name__ == "__main__":
    main()
