"""Where batches come from: bundled photos and digits, files on disk, torchvision data sets."""

from seepage.data.bundled import bundled
from seepage.data.catalogue import catalogue, load
from seepage.data.dataset import Dataset
from seepage.data.root import data_root

__all__ = ["Dataset", "bundled", "catalogue", "data_root", "load"]
