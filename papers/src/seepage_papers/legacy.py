"""The conventions behind published tables, kept so that those tables can be compared with.

None of these is a metric of Seepage and none is in the catalogue: each exists because a table was
printed with it. For anything else use the metrics, which share one convention.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.core import Batch, Domain, Paired, Reconstruction
from seepage.scoring._entrywise import differences
from seepage.scoring._pairing import align_tensors


def psnr_normalised_003(paired: Paired, domain: Domain) -> Tensor:
    """PSNR of normalised inputs with peak 1: 10 log10(1 / MSE(normalise(guess), ...)).

    Behind the PSNRs of "Inverting Gradients" (Table 1: 19.36 dB and its neighbours), as far as
    the released code shows. Dividing by a deviation below 1 inflates errors, so the value lies
    below the usual one: by 12.0 dB for CIFAR-10, by another amount for every other data set,
    which is why it should not be used for anything else.

    Example:
        >>> from seepage.domains import Image
        >>> truth = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
        >>> paired = Paired(truth, truth + 0.1, torch.tensor([0]), None, (0,))
        >>> domain = Image((1, 2, 2), mean=(0.5,), std=(0.1,))
        >>> abs(round(psnr_normalised_003(paired, domain).item(), 6))
        0.0

    References: Geiping et al., 2020, Table 1 (geiping2020inverting)
    """
    truth, guess = (domain.normalise(x.cpu().double()) for x in (paired.truth, paired.guess))
    return -10 * torch.log10((guess - truth).square().flatten(1).mean(1))


def rmse_gradattack(paired: Paired) -> Tensor:
    """GradAttack's "RMSE": sqrt(mean_j e_j^2 / max_j e_j^2), of errors e.

    Behind the RMSE of GradAttack's evaluation and, as its printed RMSE and PSNR contradict each
    other otherwise, most likely behind Tables 4 and 6 to 8 of the systematic evaluation. Dividing
    by the image's own largest error removes the scale of the error: a constant error of 0.001
    scores 1, as bad as can be, so the value ranks nothing. NaN where the guess is exact.

    Example:
        >>> truth, guess = torch.zeros(1, 4), torch.tensor([[0.1, 0.0, 0.0, 0.0]])
        >>> rmse_gradattack(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [0.5]

    References: Huang et al., 2021 (huang2021evaluating); Liu et al., 2024, Table 4
        (liu2024systematic)
    """
    squared = differences(paired).square()
    return (squared.mean(1) / squared.amax(1)).sqrt()


def best_match_gradattack(
    guess: Reconstruction,
    batch: Batch,
    function: Callable[[Paired], Tensor],
    *,
    higher_leaks_more: bool,
    peak: float = 1.0,
) -> Tensor:
    """Best value of each reconstruction over ALL originals, `(number of guesses,)`.

    Behind the averages of GradAttack (Table 5 of "Evaluating gradient inversion attacks and
    defenses") and of what reuses its code. Several reconstructions may claim the same original,
    so one image recovered many times looks like a whole batch recovered, and each metric picks
    its own match. It also scores guesses, not people: someone nobody guessed does not appear.

    Args:
        guess: What the attack returned.
        batch: The truth.
        function: A metric, or another function of this module.
        higher_leaks_more: Whether best means largest.
        peak: Width of the range of values.

    Example:
        >>> batch = Batch(torch.tensor([[0.0], [1.0]]), torch.tensor([7, 8]))
        >>> twice = Reconstruction(torch.tensor([[0.0], [0.0]]))
        >>> best_match_gradattack(twice, batch, l1_sum_002, higher_leaks_more=False).tolist()
        [0.0, 0.0]

    References: Huang et al., 2021, Table 5 (huang2021evaluating)
    """
    guesses, truth = align_tensors(guess, batch)
    best = torch.amax if higher_leaks_more else torch.amin
    values = [
        best(function(_against_all(g, j, truth, batch.labels, peak)), dim=0)
        for j, g in enumerate(guesses)
    ]
    return torch.stack(values)


def psnr_peak255_004(paired: Paired) -> Tensor:
    """PSNR with peak 255 on images in [0, 1]: 10 log10(255^2 / MSE).

    What the released code of "Analysing training-data leakage" computes, for the PSNRs of its
    supplementary Table 3. It is 48.13 dB above the usual value, because the images it is given
    are not 8-bit: use it to read that table, and for nothing else.

    Example:
        >>> truth = torch.zeros(1, 4, dtype=torch.float64)
        >>> paired = Paired(truth, truth + 0.1, torch.tensor([0]), None, (0,))
        >>> round(psnr_peak255_004(paired).item(), 2)
        68.13

    References: Chen and Campbell, 2022, Table 3 (chen2022analysing)
    """
    return -10 * torch.log10(differences(paired).square().mean(1) / 255**2)


def l1_sum_002(paired: Paired) -> Tensor:
    """Absolute error summed over the entries: sum_j |guess_j - truth_j|.

    Behind the L1 distances of "What can we learn from gradients" (Figure 6f: 728 for one filter,
    0.57 for twelve). It grows with the size of the input, so values of two data sets cannot be
    compared: use `L1`, the mean, for anything else.

    Example:
        >>> truth, guess = torch.zeros(1, 4), torch.full((1, 4), -0.5)
        >>> l1_sum_002(Paired(truth, guess, torch.tensor([0]), None, (0,))).tolist()
        [2.0]

    References: Qian and Hansen, 2020, Figure 6f (qian2020what)
    """
    return differences(paired).abs().sum(1)


def _against_all(one: Tensor, index: int, truth: Tensor, labels: Tensor, peak: float) -> Paired:
    """One guess beside every person."""
    assignment = (index,) * len(truth)
    return Paired(truth, one.expand_as(truth), labels, None, assignment, peak)
