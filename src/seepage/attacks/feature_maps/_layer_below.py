"""What the layer below read, and the scale of each map: linear algebra on two gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.feature_maps._map_layers import MapLayer
from seepage.attacks.feature_maps._map_span import MapSpan
from seepage.core import Task

# Entries below this share of the largest of a map are not taken for positive.
_POSITIVE = 3e-3
# A channel tells its gain by so many positive entries at least.
_ENOUGH = 8
# Positions at which all patches of a map are alike have eigenvalues this near to one.
_ALIKE = 1e-9
_RIDGE = 1e-12


@dataclass(frozen=True, eq=False)
class Below:
    """What a layer read, told by the map above it.

    Args:
        maps: `(N, C, H, W)`; if not `scaled`, up to one factor shared by all.
        scaled: Whether their size is known.
        scales: The factor of the direction of each map above, `(N,)`; None if it is not known.
        misfits: How far the map above is from what follows from these, relative to it, `(N,)`.
    """

    maps: Tensor
    scaled: bool
    scales: Tensor | None
    misfits: Tensor

    def select(self, chosen: Tensor) -> Below:
        """Some of the people, by a mask."""
        scales = None if self.scales is None else self.scales[chosen]
        return replace(self, maps=self.maps[chosen], scales=scales, misfits=self.misfits[chosen])


def solve_below(task: Task, span: MapSpan, people: Tensor) -> Below | None:
    """Solve for what the layer below read, given directions of maps `(N, n)` above it.

    Its input is a combination x of the maps that fit its own gradient. Where the map u above is
    positive, its normalised output is s u, linear in x and s:

        gain_c (W_c unfold(V x)) + offset_c = s u_c    where u_c > 0

    Behind normalisation by the batch, gain and offset are not known either; see `_solve_by_batch`.

    Returns:
        None if the input is not determined.
    """
    layer = span.layer
    above = people.reshape(len(people), -1, layer.positions)
    norm = task.network.get_submodule(layer.norm) if layer.norm else None
    weight = task.parameters[f"{layer.name}.weight"].flatten(1).double()
    bias = task.parameters.get(f"{layer.name}.bias")
    basis = span.flat.T.reshape(-1, *layer.shape)
    if layer.by_batch:
        assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        return _solve_by_batch(span, basis, weight, norm, above)
    gain = weight.new_ones(len(weight))
    offset = gain * 0 if bias is None else bias.double()
    if norm is not None:
        assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        gain = (norm.running_var.double() + norm.eps).rsqrt()
        gain = gain if norm.weight is None else gain * norm.weight.double()
        offset = (offset - norm.running_mean.double()) * gain
        offset = offset if norm.bias is None else offset + norm.bias.double()
    return _solve_known(span, basis, weight * gain[:, None], offset, above)


def _responses(layer: MapLayer, basis: Tensor, weight: Tensor) -> Tensor:
    """What the layer returns for each map of a basis, `(K, O, P)`."""
    return torch.cat([weight @ layer.unfold(maps) for maps in layer.in_parts(basis)])


def _solve_known(
    span: MapSpan, basis: Tensor, weight: Tensor, offset: Tensor, above: Tensor
) -> Below | None:
    """With gain and offset known: least squares for each person."""
    responses = _responses(span.layer, basis, weight)
    spread = offset[:, None].expand(-1, span.layer.positions)
    homogeneous = not bool(offset.any())
    maps, scales, misfits = [], [], []
    for one in above:
        on = one > _POSITIVE * one.max()
        if int(on.sum()) < len(basis) + _ENOUGH:
            return None
        rows, wanted, known = responses[:, on].T, one[on], spread[on]
        if homogeneous:
            solved, scale = _least_squares(rows, wanted), wanted.new_ones(())
        else:
            both = torch.cat([rows, -wanted[:, None]], dim=1)
            solution = _least_squares(both, -known)
            solved, scale = solution[:-1], solution[-1]
        found = torch.einsum("k,kop->op", solved, responses) + spread
        # A scale that is not positive is nobody's.
        apart = (found.clamp_min(0) - scale * one).norm() / (scale * one).norm()
        misfits.append(apart if scale > 0 else torch.full_like(apart, torch.inf))
        maps.append(torch.einsum("k,kchw->chw", solved, basis))
        scales.append(scale)
    values = torch.stack(maps)
    values = values.clamp_min(0) if span.layer.rectified else values
    known_scales = None if homogeneous else torch.stack(scales)
    return Below(values, not homogeneous, known_scales, torch.stack(misfits))


def _least_squares(rows: Tensor, wanted: Tensor) -> Tensor:
    """The x with the least ||rows x - wanted||, by QR with columns of length one."""
    lengths = rows.norm(dim=0).clamp_min(1e-300)
    q, r = torch.linalg.qr(rows / lengths)
    solved: Tensor = torch.linalg.solve_triangular(r, (q.T @ wanted)[:, None], upper=True)[:, 0]
    scaled: Tensor = solved / lengths
    return scaled


def _solve_by_batch(
    span: MapSpan,
    basis: Tensor,
    weight: Tensor,
    norm: nn.BatchNorm1d | nn.BatchNorm2d,
    above: Tensor,
) -> Below | None:
    """With normalisation by the batch, whose gain and offset nobody told.

    For person b, with h the input divided by the scale s_b of the map above,

        W_c unfold(h_b) - n_bc = g_c u_bc    where u_bc > 0,   g_c = std_c / gamma_c.

    This is linear in h_b, n_b and the g that all people share. Without the former two, g is the
    smallest eigenvector of a matrix as wide as there are channels. Offsets that all patches of a
    map share change nothing in these equations (with kernel 3, stride 2 and padding 1, one at
    every second pixel); they are left out at first. All centred patches of the batch lie in the
    span of the gradient, so the mean patches of the people differ, beside such offsets, by s_b
    alone outside of it: they are multiples of one vector, which tells the scales. Then the span
    tells the differences of the offsets as well, and since some pixel of each channel is zero
    behind a ReLU, the offsets. One factor for everything stays unknown, as normalisation hides it.
    """
    layer = span.layer
    if not layer.rectified:
        return None
    flat_maps, flat_patches = _alike_maps(layer, like=weight)
    basis = _without_flat(layer, basis, flat_maps)
    responses = _responses(layer, basis, weight)
    on = above > _POSITIVE * above.amax((1, 2), keepdim=True)
    told = (on.sum(2) - 1).clamp_min(0).sum(0) >= _ENOUGH
    solved = _solve_gains(responses, above, on & told[:, None])
    if solved is None:
        return None
    coefficients, _ = solved
    maps = torch.einsum("bk,kchw->bchw", coefficients, basis)
    means = layer.unfold(maps).mean(2)
    channels = torch.eye(layer.shape[0], dtype=weight.dtype, device=weight.device)
    open_patches = torch.einsum("ij,dk->idjk", channels, flat_patches).reshape(layer.patch, -1)
    both = torch.linalg.qr(torch.cat([span.rows, open_patches], dim=1)).Q
    outside = means - means @ both @ both.T
    left, sizes, _ = torch.linalg.svd(outside, full_matrices=False)
    ratios = left[:, 0] * left[:, 0].sum().sign()
    if not bool((ratios > 0).all()) or float(sizes[0]) <= 1e-9 * float(means.norm()):
        return None
    # In units of the first person's scale.
    scales = 1 / ratios * ratios.mean()
    maps = maps * scales[:, None, None, None]
    if flat_patches.shape[1]:
        maps = maps + _offsets(layer, span.rows, maps, open_patches, flat_maps)
    maps = maps.clamp_min(0)
    returned = torch.cat([weight @ layer.unfold(part) for part in layer.in_parts(maps)])
    mean = returned.mean((0, 2), keepdim=True)
    spread = returned.var((0, 2), keepdim=True, unbiased=False).sqrt().clamp_min(1e-300)
    made = (returned - mean) / spread
    if norm.weight is not None:
        made = made * norm.weight.double()[:, None]
    if norm.bias is not None:
        made = made + norm.bias.double()[:, None]
    made = made.clamp_min(0)
    sizes = (made * above).sum((1, 2)) / above.square().sum((1, 2))
    apart = (made - sizes[:, None, None] * above).flatten(1).norm(dim=1)
    return Below(maps, False, sizes, apart / (sizes * above.flatten(1).norm(dim=1)))


def _solve_gains(responses: Tensor, above: Tensor, on: Tensor) -> tuple[Tensor, Tensor] | None:
    """The coefficients `(N, K)` of all people, and the gains `(O,)` that they share.

    Args:
        responses: Of each map of the basis, `(K, O, P)`.
        above: Directions of the maps, `(N, O, P)`.
        on: Which entries are used, `(N, O, P)`.
    """
    count, channels = len(responses), responses.shape[1]
    total = responses.new_zeros(channels, channels)
    parts = []
    for one, used in zip(above, on, strict=True):
        share = used / used.sum(1, keepdim=True).clamp_min(1)
        # Each channel less its mean over the entries used, which takes its offset out.
        rows = (responses - (responses * share).sum(2, keepdim=True)) * used
        wanted = (one - (one * share).sum(1, keepdim=True)) * used
        flat = rows.flatten(1)
        normal = flat @ flat.T
        normal = normal + _RIDGE * normal.diagonal().mean() * torch.eye(count).to(normal)
        mixed = torch.einsum("kop,op->ko", rows, wanted)
        reduced = torch.linalg.solve(normal, mixed)
        total = total + torch.diag(wanted.square().sum(1)) - mixed.T @ reduced
        parts.append(reduced)
    sizes = torch.stack([(above * on).square().sum((0, 2))])[0]
    live = sizes > 0
    if int(live.sum()) < 2:
        return None
    # Unit diagonal, so that faint channels count as much as others.
    scale = sizes[live].rsqrt()
    _, vectors = torch.linalg.eigh(scale[:, None] * total[live][:, live] * scale)
    gains = above.new_zeros(channels)
    gains[live] = vectors[:, 0] * scale
    gains = gains * gains.sum().sign()
    coefficients = torch.stack([reduced @ gains for reduced in parts])
    return coefficients, gains


def _alike_maps(layer: MapLayer, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Maps of one channel with all patches alike, `(H W, k)`, and these patches `(d, k)`."""
    single = MapLayer(
        layer.name,
        (1,),
        (1, *layer.shape[1:]),
        layer.kernel,
        layer.stride,
        layer.padding,
        layer.dilation,
        1,
        None,
        layer.by_batch,
        layer.rectified,
    )
    count = single.entries
    pixels = torch.eye(count, dtype=like.dtype, device=like.device).reshape(-1, *single.shape)
    patches = single.unfold(pixels)
    centred = (patches - patches.mean(2, keepdim=True)).flatten(1)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    maps = vectors[:, values < _ALIKE * values[-1].clamp_min(1e-300)]
    means = torch.einsum("nk,nd->dk", maps, patches.mean(2))
    return maps, means


def _without_flat(layer: MapLayer, basis: Tensor, flat_maps: Tensor) -> Tensor:
    """Maps less their part along the flat ones, orthonormal; those that were flat are left out."""
    by_channel = basis.reshape(len(basis), layer.shape[0], -1)
    rest = by_channel - by_channel @ flat_maps @ flat_maps.T
    _, sizes, rows = torch.linalg.svd(rest.flatten(1), full_matrices=False)
    curved: Tensor = rows[sizes > 1e-3 * sizes[0]].reshape(-1, *layer.shape)
    return curved


def _offsets(
    layer: MapLayer, rows: Tensor, maps: Tensor, open_patches: Tensor, flat_maps: Tensor
) -> Tensor:
    """The flat maps that each person lacks, `(N, C, H, W)`.

    With them all centred patches of the batch lie in the span, and the smallest entry of each
    channel is zero.
    """
    means = layer.unfold(maps).mean(2)
    outside = means - means @ rows @ rows.T
    free = open_patches - rows @ (rows.T @ open_patches)
    differences = (outside - outside[:1]).T
    shifts = -torch.linalg.lstsq(free, differences).solution.T
    per_channel = shifts.reshape(len(maps), layer.shape[0], flat_maps.shape[1])
    added: Tensor = (per_channel @ flat_maps.T).reshape(maps.shape)
    for number in range(flat_maps.shape[1]):
        pattern = flat_maps[:, number] * flat_maps[:, number].sum().sign()
        inside = pattern > 1e-6
        values = (maps + added).flatten(2)[:, :, inside] / pattern[inside]
        lowest = values.amin((0, 2))
        added = added - (lowest[:, None] * pattern).reshape(maps.shape[1:])
    return added
