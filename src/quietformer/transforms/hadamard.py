"""Orthogonal matrices with entries of equal magnitude: they spread the value of one feature evenly over all features."""

from __future__ import annotations

import torch
from torch import Tensor


def spreading(width: int, seed: int = 0) -> Tensor:
    """Q (width, width) in float64 with Q Q^T = 1: a Hadamard matrix with random signs, or a random rotation if there is none."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (width, 1), generator=generator).double() * 2 - 1
    matrix = hadamard(width)
    if matrix is None:
        random, _ = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
        matrix = random * width**0.5
    found: Tensor = signs * matrix / width**0.5
    return found


def hadamard(order: int) -> Tensor | None:
    """A Hadamard matrix by Sylvester's and Paley's constructions; None if they do not reach this order."""
    doublings, odd = 0, order
    while True:
        if (core := _paley(odd)) is not None:
            break
        if odd % 2:
            return None
        doublings, odd = doublings + 1, odd // 2
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    for _ in range(doublings):
        core = torch.kron(pair, core)
    return core


def _paley(order: int) -> Tensor | None:
    if order in (1, 2):
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)[:order, :order]
    q = order - 1
    if q % 4 == 3 and _is_prime(q):
        skew = _conference(q, sign=-1.0)
        return skew + torch.eye(order, dtype=torch.float64)
    if order % 4 == 0 and (q := order // 2 - 1) % 4 == 1 and _is_prime(q):
        ones = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        turned = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
        eye = torch.eye(q + 1, dtype=torch.float64)
        return torch.kron(_conference(q, sign=1.0), ones) + torch.kron(eye, turned)
    return None


def _conference(q: int, *, sign: float) -> Tensor:
    """A conference matrix: zeros on the diagonal, 1 and -1 elsewhere, orthogonal rows; from the quadratic residues of a prime."""
    squares = {x * x % q for x in range(1, q)}
    character = torch.tensor([0.0] + [1.0 if x in squares else -1.0 for x in range(1, q)], dtype=torch.float64)
    places = torch.arange(q)
    matrix = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    matrix[0, 1:], matrix[1:, 0] = 1.0, sign
    matrix[1:, 1:] = character[(places[None, :] - places[:, None]) % q]
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))
