"""Label recovery: the multiset of labels of a batch, from its update alone."""

from seepage.attacks.labels.batch_size import estimate_batch_size
from seepage.attacks.labels.counting import CountAware, count_classes
from seepage.attacks.labels.infer import InferLabels
from seepage.attacks.labels.read_logits import ReadLogits
from seepage.attacks.labels.rules import IDLG, LabelRule, SignRule, YinMinimum

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
