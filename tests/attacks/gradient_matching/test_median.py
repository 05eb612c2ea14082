"""The median filter against scipy's."""

import pytest
import torch
from scipy import ndimage

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.search._engine import _median_filter


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("shape", [(3, 2, 3, 8, 9), (1, 1, 4, 3), (2, 5, 1)])
def test_images_are_filtered_as_scipy_does_with_mirrored_borders(shape, size):
    x = sp.rng(0).normal(shape)
    window = (1,) * (len(shape) - 2) + (size, size)
    theirs = ndimage.median_filter(x.numpy(), size=window, mode="mirror")
    assert torch.equal(_median_filter(x, size=size), torch.from_numpy(theirs))


@pytest.mark.parametrize("shape", [(4, 2, 1, 20), (3, 2), (1, 1)])
def test_signals_are_filtered_along_their_one_axis(shape):
    x = sp.rng(0).normal(shape)
    theirs = ndimage.median_filter(x.numpy(), size=(1,) * (len(shape) - 1) + (3,), mode="mirror")
    assert torch.equal(_median_filter(x, axes=1), torch.from_numpy(theirs))


def test_a_single_bright_pixel_disappears_and_an_edge_stays():
    x = torch.zeros(1, 3, 8, 8)
    x[..., 4:] = 1.0
    spotted = x.clone()
    spotted[..., 2, 2] = 5.0
    assert torch.equal(_median_filter(spotted), x)


def test_an_even_window_has_no_median():
    with pytest.raises(InvalidValue, match="odd size"):
        _median_filter(torch.zeros(1, 4, 4), size=2)
