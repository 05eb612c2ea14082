"""Batch normalisation by each row's own statistics, differentiated twice by hand."""

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks.gradient_matching.rows.standardised import row_standardised

EPS = 1e-2


def by_autograd(inputs: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Row by row, as torch does."""
    rows = zip(inputs, weight, bias, strict=True)
    return torch.stack(
        [nn.functional.batch_norm(x, None, None, w, b, training=True, eps=eps) for x, w, b in rows]
    )


def differentiated(method, size):
    """The output, its gradients, and the gradient of something made of all of them."""
    draw = torch.Generator().manual_seed(0)
    x, factors = (torch.randn(size, dtype=torch.double, generator=draw) for _ in range(2))
    weight, bias = (torch.randn(size[0], size[2], dtype=torch.double, generator=draw) for _ in "ab")
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    outputs = method(x.sin(), weight, bias, EPS)
    first = torch.autograd.grad((outputs**3 * factors).sum(), leaves, create_graph=True)
    value = sum((g**3).sum() for g in first) + (first[0] * factors).sum() + (outputs**4).sum()
    return [outputs, *first, torch.autograd.grad(value, x)[0]]


@pytest.mark.parametrize("size", [(2, 3, 4, 5, 5), (1, 2, 3, 4), (3, 5, 2)])
def test_it_is_what_autograd_makes_of_batch_norm(size):
    ours, theirs = differentiated(row_standardised, size), differentiated(by_autograd, size)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
