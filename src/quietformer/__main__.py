"""`python -m quietformer`."""

from quietformer.cli.main import main

main()
