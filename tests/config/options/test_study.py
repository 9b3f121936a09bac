"""Options of studies."""

from __future__ import annotations

from quietformer.config.options.study import CompareOptions


def test_options_from_python_are_those_of_the_command_line():
    given = CompareOptions(variants="vanilla,gated", set={"training.steps": 6, "name": "x"}, out="here", real=False)
    assert given.variants == ("vanilla", "gated")
    assert given.words() == [
        "--out", "here", "--variants", "vanilla", "--variants", "gated", "--set", "training.steps=6", "--set", "name=x",
        "--no-real",
    ]  # fmt: skip
