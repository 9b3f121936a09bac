"""What tests of several rooms share."""

from __future__ import annotations

import sys

import pytest

from quietformer.cli import main as cli


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["quietformer", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def sentence_encoder(tmp_path_factory):
    """A small encoder with the settings of sentence-transformers."""
    from tests.deployment.exports import write_encoder

    return write_encoder(tmp_path_factory.mktemp("encoder") / "source")


@pytest.fixture(scope="session")
def exported_encoder(sentence_encoder, tmp_path_factory):
    """The same as INT8 for every client that takes a graph, with fp32 and pooling; to be read, and copied before a change."""
    import quietformer as qf
    from quietformer.deployment.target import every_target
    from tests.deployment.exports import small

    out = tmp_path_factory.mktemp("out") / "encoder"
    chosen = [target.name for target in every_target() if target.name != "compressed-tensors"]
    qf.export(sentence_encoder, out, targets=chosen, pooled=True, keep_fp32=True, **small(sentence_encoder))
    return out
