"""Which operations compute something from an input, and whether any of them may jump."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that are continuous in every tensor they take, as torch names them. The update is
# computed by these and by nothing else, or it may jump.
_NAMES_OF_CONTINUOUS = """
view _unsafe_view reshape expand t transpose permute slice slice_backward select select_backward
squeeze unsqueeze cat stack split split_with_sizes unbind alias clone copy_ _to_copy detach
constant_pad_nd gather scatter scatter_add scatter_add_ index index_select index_put index_put_
index_add masked_fill where tril triu diagonal flip roll repeat unfold as_strided im2col col2im
unfold_backward embedding new_zeros new_ones new_full new_empty new_empty_strided zeros_like
ones_like full_like empty_like fill_ zero_ zero lift_fresh add add_ sub sub_ rsub mul mul_ div
div_ neg mean sum mm bmm addmm baddbmm mv addmv dot addcmul addcdiv linear einsum pow sqrt rsqrt
exp expm1 log log1p reciprocal sin cos erf cumsum var var_mean std linalg_vector_norm norm
logsumexp prod abs clamp clamp_min clamp_max maximum minimum amax amin relu relu_ leaky_relu elu
hardtanh hardswish hardsigmoid sigmoid sigmoid_backward tanh tanh_backward gelu gelu_backward
silu silu_backward softplus softplus_backward mish mish_backward log_sigmoid_forward
log_sigmoid_backward _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss
mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
native_batch_norm native_batch_norm_backward _native_batch_norm_legit
_native_batch_norm_legit_no_training cudnn_batch_norm cudnn_batch_norm_backward
native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
convolution convolution_backward avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d
avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
_adaptive_avg_pool3d_backward upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d
upsample_bilinear2d_backward reflection_pad2d reflection_pad2d_backward replication_pad2d
replication_pad2d_backward _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention
_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
_scaled_dot_product_flash_attention_backward
"""
_CONTINUOUS = frozenset(_NAMES_OF_CONTINUOUS.split())
# What a person calls some of the others.
_COMMON_NAMES = {
    "threshold_backward": "ReLU",
    "leaky_relu_backward": "LeakyReLU",
    "elu_backward": "SELU or ELU",
    "hardtanh_backward": "Hardtanh or ReLU6",
    "max_pool2d_with_indices": "MaxPool",
    "max_pool2d_with_indices_backward": "MaxPool",
    "gt": "a comparison",
    "ge": "a comparison",
    "lt": "a comparison",
    "le": "a comparison",
    "kthvalue": "pruning",
    "sort": "pruning",
    "topk": "the choice of the largest entries",
    "sgn": "Sign",
    "sign": "Sign",
}


class OperationTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names the operations on whatever depends on a tensor, in the order they first run.

    Attributes:
        jumps: Those that are not known to be continuous.
        at_kink: Whether some ReLU got exactly zero.
    """

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Storages are held, so that no address is used twice.
        self._seen = {inputs.untyped_storage()._cdata: inputs.untyped_storage()}
        self.jumps: dict[str, None] = {}
        self.at_kink = False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        given = _list_tensors((args, kwargs))
        if any(t.untyped_storage()._cdata in self._seen for t in given):
            for t in _list_tensors(result):
                self._seen[t.untyped_storage()._cdata] = t.untyped_storage()
            name = str(func.overloadpacket).removeprefix("aten.")
            if name in ("relu", "relu_", "leaky_relu"):
                self.at_kink |= bool((args[0] == 0).any())
            # Both sides of an ELU have the same slope at zero; those of a SELU have not.
            elu = name == "elu_backward" and math.isclose(args[1] * args[3], 1.0)
            if not (name in _CONTINUOUS or elu):
                self.jumps[_COMMON_NAMES.get(name, name)] = None
        return result


def _list_tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def trace_operations(compute: Callable[[Tensor], Tensor], inputs: Tensor) -> OperationTrace:
    """Run a function and look at every operation on what depends on its inputs.

    Example:
        >>> list(trace_operations(lambda x: (x > 0) * x.exp(), torch.ones(2)).jumps)
        ['a comparison']
    """
    inputs = inputs.clone()
    trace = OperationTrace(inputs)
    with torch.no_grad(), trace:
        compute(inputs)
    return trace
