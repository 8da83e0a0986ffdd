"""Losses on NumPy arrays: the table of their algorithms."""

from dnnarray._cpu.loss import ctc as loss_ctc
from dnnarray._cpu.loss import linear as loss_linear
from dnnarray._cpu.loss import scores as loss_scores

ALGORITHMS = loss_scores.ALGORITHMS | loss_linear.ALGORITHMS | loss_ctc.ALGORITHMS
