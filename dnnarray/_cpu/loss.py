"""Losses on NumPy arrays: the table of their algorithms."""

from dnnarray._cpu import loss_ctc, loss_linear, loss_scores

ALGORITHMS = loss_scores.ALGORITHMS | loss_linear.ALGORITHMS | loss_ctc.ALGORITHMS
