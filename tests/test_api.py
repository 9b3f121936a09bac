"""The verbs of Python and of the command line: the same names, options, defaults and help."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from typer.main import get_command

import quietformer as qf
from quietformer.cli.main import app
from quietformer.cli.report_files import JsonOutput, PageOutput
from quietformer.config.options.base import Options

COMMANDS = get_command(app).commands
OUTPUT = {"help"}
"""What a command says about where its report is written; in Python a report has `save` and `to_html`."""


def output_fields(cls: type[Options]) -> set[str]:
    return {*cls.model_fields}.union(*map(output_fields, cls.__subclasses__()))


ONLY_ON_THE_COMMAND_LINE = OUTPUT | output_fields(JsonOutput) | output_fields(PageOutput)


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_command_is_a_function_with_the_same_options_and_defaults(verb):
    function = getattr(qf, verb)
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    options = {
        parameter.name: parameter.default
        for parameter in COMMANDS[verb].params
        if parameter.param_type_name == "option" and parameter.name not in ONLY_ON_THE_COMMAND_LINE
    }
    comparable = {name: list(value) if isinstance(value, tuple) else value for name, value in keywords.items()}
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()} == comparable
    arguments = [parameter for parameter in COMMANDS[verb].params if parameter.param_type_name == "argument"]
    positional = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    assert len(arguments) == len(positional)


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_option_has_a_help_text(verb):
    for parameter in COMMANDS[verb].params:
        assert parameter.help, f"{verb} {parameter.name}"


def test_an_unknown_option_names_the_nearest_one():
    with pytest.raises(qf.QuietformerError, match="did you mean 'sequences'"):
        qf.inspect("minilm", sequnces=3)


def test_a_type_checker_sees_options_and_reports(tmp_path):
    (tmp_path / "user.py").write_text(
        "import quietformer as qf\n"
        'reveal_type(qf.retrofit("minilm", "out", steps=10).before.real)\n'
        'real = qf.retrofit("minilm", "out").before.real\n'
        "assert real is not None and real.per_channel is not None\n"
        "reveal_type(real.per_channel.cosine)\n"
        'reveal_type(qf.inspect("minilm", sequences=4).headline.kurtosis)\n'
        'qf.inspect("minilm", sequnces=4)\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "user.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    revealed = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines() if "Revealed" in line]
    assert len(revealed) == 3, done.stdout
    assert revealed[1:] == ['"float | None"', '"float | None"']
    assert "Any" not in revealed[0]
    assert 'did you mean "sequences"' in done.stdout
    assert done.stdout.count(" error: ") == 1
