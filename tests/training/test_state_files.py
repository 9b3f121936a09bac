"""States of optimizers and generators: exactly the same after a file, and nothing in it can run."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from quietformer.errors import CheckpointError
from quietformer.training.state_files import random_states, read_tree, set_random_states, write_tree

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
tensors = st.builds(
    lambda n, seed: torch.randn(n, generator=torch.Generator().manual_seed(seed)), st.integers(0, 4), st.integers(0, 99)
)
trees = st.recursive(
    plain | tensors,
    lambda below: (
        st.lists(below, max_size=3)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), below, max_size=3)
    ),
    max_leaves=10,
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@settings(deadline=None, max_examples=60)
@given(tree=trees)
def test_any_tree_comes_back_as_it_was(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("tree") / "state.safetensors"
    write_tree(path, tree)
    assert same(read_tree(path), tree)


def test_an_optimizer_goes_on_exactly_where_it_was(tmp_path):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.95))

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    one, first = make()
    step(one, first)
    write_tree(tmp_path / "o.safetensors", first.state_dict())
    other, second = make()
    other.load_state_dict(one.state_dict())
    second.load_state_dict(read_tree(tmp_path / "o.safetensors"))
    for _ in range(3):
        step(one, first)
        step(other, second)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_random_numbers_go_on_where_they_were(tmp_path):
    def draw():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(2).tolist()

    np.random.randn()  # leaves half of a pair of normal numbers in the state
    write_tree(tmp_path / "r.safetensors", random_states())
    expected = draw()
    draw()
    set_random_states(read_tree(tmp_path / "r.safetensors"))
    assert draw() == expected


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "state.safetensors"
    write_tree(path, {"a": torch.ones(3)})
    with safe_open(path, framework="pt") as file:
        assert "tree" in file.metadata()
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged"):
        read_tree(path)
