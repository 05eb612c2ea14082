"""Label recovery: the labels of a batch with their counts, from its update alone."""

from seepage.attacks.labels._count_labels import count_classes, estimate_batch_size
from seepage.attacks.labels._infer_labels import (
    IDLG,
    CountAware,
    InferLabels,
    LabelRule,
    SignRule,
    YinMinimum,
)
from seepage.attacks.labels._read_logits import ReadLogits

__all__ = [
    "IDLG",
    "CountAware",
    "InferLabels",
    "LabelRule",
    "ReadLogits",
    "SignRule",
    "YinMinimum",
    "count_classes",
    "estimate_batch_size",
]
