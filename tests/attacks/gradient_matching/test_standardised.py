"""Batch normalisation by each row's own statistics, differentiated twice by hand."""

import pytest
import torch
from torch import Tensor, nn

from seepage.search.fast._row_layers import _batchnorm_train

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
    ours, theirs = differentiated(_batchnorm_train, size), differentiated(by_autograd, size)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def centred(slopes, standard):
    """What batch normalisation lets back through: slopes less their mean and their part along z."""
    others = [axis for axis in range(slopes.ndim) if axis not in (0, 2)]
    along = (slopes * standard).mean(others, keepdim=True)
    return slopes - slopes.mean(others, keepdim=True) - standard * along


@pytest.mark.parametrize("size", [(2, 3, 4, 5, 5), (3, 5, 2)])
def test_given_statistics_are_constants_of_the_candidate_and_the_clients_own_on_the_way_back(size):
    draw = torch.Generator().manual_seed(0)
    x, factors = (torch.randn(size, dtype=torch.double, generator=draw) for _ in range(2))
    scale, shift, mean, variance = (
        torch.rand(size[0], size[2], dtype=torch.double, generator=draw) + 0.5 for _ in range(4)
    )
    wide = [v.reshape(size[0], 1, size[2], *(1,) * (len(size) - 3)) for v in (scale, mean)]
    deep = (variance.reshape(wide[0].shape) + EPS).sqrt()

    def first_by_hand(x):
        standard = (x - wide[1]) / deep
        outputs = standard * wide[0] + shift.reshape(wide[0].shape)
        slopes = 3 * outputs**2 * factors
        others = [axis for axis in range(x.ndim) if axis not in (0, 2)]
        back = wide[0] / deep * centred(slopes, standard)
        return outputs, back, (slopes * standard).sum(others), slopes.sum(others)

    def first(x):
        leaves = [x, scale.clone().requires_grad_(), shift.clone().requires_grad_()]
        outputs = _batchnorm_train(*leaves, EPS, (mean, variance))
        loss = (outputs**3 * factors).sum()
        return outputs, *torch.autograd.grad(loss, leaves, create_graph=True)

    def differentiated_again(parts, x):
        value = sum((part**3).sum() for part in parts) + (parts[1] * factors).sum()
        return *parts, *torch.autograd.grad(value, x)

    x.requires_grad_()
    ours, theirs = (differentiated_again(made(x), x) for made in (first, first_by_hand))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
