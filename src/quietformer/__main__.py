"""`python -m quietformer`."""

from __future__ import annotations

from quietformer.cli.main import main

main()
