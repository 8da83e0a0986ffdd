"""The CPU table, row by row: our time, and the ratio to PyTorch where that is installed.

``make asv`` holds every library to the same number of threads by the environment, which they read when they are loaded.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from asv_bench.cpu import measure
from asv_bench.cpu_rows import ROWS

_ROWS = {row.name: row for row in ROWS}
_SECONDS = 10.0  # the longest that a ratio may take


class Ours:
    params = list(_ROWS)
    param_names = ("row",)

    def setup(self, row):
        self.call = _ROWS[row].case().ours()
        self.call()

    def time_ours(self, row):
        self.call()


class BesidePyTorch:
    params = list(_ROWS)
    param_names = ("row",)
    timeout = 300

    def setup(self, row):
        if not find_spec("torch"):
            raise NotImplementedError("PyTorch is not installed")
        self.torch = import_module("torch")
        self.torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

    def track_ratio(self, row):
        return measure(_ROWS[row], self.torch, _SECONDS).ratio

    track_ratio.unit = "times"
