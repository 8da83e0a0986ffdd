"""The GPU table, a figure for each family: geometric means over its rows. Skipped where there is no GPU with CuPy and
PyTorch."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
_FAMILIES = sorted(
    p.stem
    for p in Path(__file__).resolve().parents[1].glob("gpu_*.py")
    if p.stem not in ("gpu_small", "gpu_selection", "gpu_start", "gpu_errors")
)


class Table:
    params = _FAMILIES
    param_names = ("family",)
    timeout = 3600

    def setup_cache(self):
        """Each family's rows, measured once: (share of copy, ratio to the faster peer)."""
        try:
            import cupy
            import torch

            from asv_bench import gpu
        except ImportError:
            return {}
        if not torch.cuda.is_available():
            return {}
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
            ceiling = gpu.copy_bandwidth()
            return {f: [(r.share, r.ratio) for r in gpu.measure(f, [""], False, ceiling)] for f in _FAMILIES}

    def setup(self, found, family):
        if family not in found:
            raise NotImplementedError("no GPU here")

    def track_share_of_copy(self, found, family):
        return float(np.exp(np.mean(np.log([share for share, _ in found[family]]))))

    def track_ratio_to_best_peer(self, found, family):
        return float(np.exp(np.mean(np.log([ratio for _, ratio in found[family] if ratio]))))

    track_share_of_copy.unit = "share"
    track_ratio_to_best_peer.unit = "times"
