"""What noise promises: bounds on reconstruction from differential privacy.

Fisher information leakage, the other bound of Guo et al., is `CramerRaoRelaxed`.
"""

from seepage.bounds.dp.blow_up import Estimated, gaussian_blow_up, subsampled_blow_up
from seepage.bounds.dp.mechanism import Mechanism, mechanism
from seepage.bounds.dp.renyi_error import RenyiError, renyi_rmse
from seepage.bounds.dp.requirement import required_noise
from seepage.bounds.dp.robustness import (
    expected_error,
    gaussian_renyi_robustness,
    prior_success,
    renyi_robustness,
)

__all__ = [
    "Estimated",
    "Mechanism",
    "RenyiError",
    "expected_error",
    "gaussian_blow_up",
    "gaussian_renyi_robustness",
    "mechanism",
    "prior_success",
    "renyi_rmse",
    "renyi_robustness",
    "required_noise",
    "subsampled_blow_up",
]
