"""README's table of `make demo`, from what it left.

python -m tools.demo_table demo/retrofit.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.tables import markdown, write_between

from quietformer.cli.retrofit import table_rows

README = Path(__file__).resolve().parents[1] / "README.md"


def main() -> None:
    figures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    table = markdown([["", "before", "after"], *table_rows(figures)])
    write_between(README, "demo", f"{table}\n{figures['steps']} steps, {figures['minutes']:.1f} minutes of training.\n")


if __name__ == "__main__":
    main()
