"""Where batches come from: bundled photos and digits, files on disk, torchvision data sets."""

from seepage.data._dataset import Dataset, data_root
from seepage.data._load import catalogue, load
from seepage.data._named_sets import bundled
from seepage.data._table_files import read_table

__all__ = ["Dataset", "bundled", "catalogue", "data_root", "load", "read_table"]
