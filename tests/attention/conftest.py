"""Small blocks, and both ways to compute their rows."""

from __future__ import annotations

import pytest

from quietformer.attention.kernels import blocked
from quietformer.attention.kernels import compiled_rows as rows
from quietformer.attention.normalizers import clipped_softmax as clipped


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of rows and of heads in tensors that a formula can be checked on."""
    monkeypatch.setattr(blocked, "BLOCK_WEIGHTS", 64)
    monkeypatch.setattr(blocked, "BLOCK_ROWS", 4)
    monkeypatch.setattr(blocked, "LEAST_ROWS", 2)
    monkeypatch.setattr(clipped, "WORTH_BLOCKS", 0)


@pytest.fixture(params=["compiled", "pure"])
def compiled_and_not(request, monkeypatch):
    if request.param == "pure":
        monkeypatch.setattr(rows, "compiled_rows", lambda: None)
    elif rows.compiled_rows() is None:
        pytest.skip("the compiled rows were not built here")
