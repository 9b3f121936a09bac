"""How long it takes until something happens: `import quietformer` and `quietformer --help`, against python and import torch.

    python -m experiments.speed.startup [--rounds N] [--keep]

Each in a process of its own, taking turns; wall time of the fastest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

from experiments.provenance import keep, keep_option_
from experiments.speed.turns import fastest, machine

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import quietformer": ["-c", "import quietformer"],
    "quietformer --help": ["-m", "quietformer", "--help"],
    "quietformer retrofit --help": ["-m", "quietformer", "retrofit", "--help"],
    "import torch": ["-c", "import torch"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    keep_option_(parser)
    arguments = parser.parse_args()

    def run(words: list[str]) -> Any:
        return lambda: subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)

    seconds = fastest({name: run(words) for name, words in COMMANDS.items()}, arguments.rounds)
    for name, found in seconds.items():
        print(f"{name}: {found:.2f} s, {found / seconds['import torch']:.2f} of import torch")
    if arguments.keep:
        keep(__file__, {"machine": machine(), "seconds": seconds})


if __name__ == "__main__":
    main()
