"""Losses: the table of their kernels."""

from dnnarray._cuda import loss_ctc, loss_linear, loss_nll, loss_scores

ALGORITHMS = loss_scores.ALGORITHMS | loss_nll.ALGORITHMS | loss_ctc.ALGORITHMS | loss_linear.ALGORITHMS
