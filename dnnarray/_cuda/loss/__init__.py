"""Losses: the algorithms, each with its plan in the module and its kernel in the file of the same name."""

from dnnarray._cuda.loss import (
    cross_entropy_backward_cluster,
    cross_entropy_backward_columns,
    cross_entropy_backward_rows,
    cross_entropy_columns,
    cross_entropy_rows,
    cross_entropy_short,
    ctc_gradient,
    ctc_lattice,
    linear,
    nll,
    nll_backward,
)
from dnnarray._select import Method

_ONLINE = "with a running maximum"
_LESS = "softmax less target"
_SHORT = Method(
    "cross_entropy_short",
    cross_entropy_short.run,
    "short rows, several in a part of a warp",
    cross_entropy_short.rejects,
    cross_entropy_short.workspace,
)
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "cross_entropy": (
        _SHORT,
        Method(
            "cross_entropy_rows",
            cross_entropy_rows.run,
            f"rows {_ONLINE}",
            cross_entropy_rows.rejects,
            cross_entropy_rows.workspace,
        ),
        Method(
            "cross_entropy_columns",
            cross_entropy_columns.run,
            f"columns {_ONLINE}",
            cross_entropy_columns.rejects,
            cross_entropy_columns.workspace,
        ),
    ),
    "cross_entropy_backward": (
        _SHORT,
        Method(
            "cross_entropy_backward_rows",
            cross_entropy_backward_rows.run,
            f"{_LESS}, a block for each row",
            cross_entropy_backward_rows.rejects,
            cross_entropy_backward_rows.workspace,
            cross_entropy_backward_rows.cost,
        ),
        Method(
            "cross_entropy_backward_cluster",
            cross_entropy_backward_cluster.run,
            f"{_LESS}, rows in the shared memory of a cluster",
            cross_entropy_backward_cluster.rejects,
            cross_entropy_backward_cluster.workspace,
        ),
        Method(
            "cross_entropy_backward_columns",
            cross_entropy_backward_columns.run,
            f"{_LESS}, neighbouring columns in a thread",
            cross_entropy_backward_columns.rejects,
            cross_entropy_backward_columns.workspace,
        ),
    ),
    "nll_loss": (Method("nll", nll.run, "the scores at the labels", workspace=nll.workspace),),
    "nll_loss_backward": (
        Method("nll_backward", nll_backward.run, "zeros but for the labels", workspace=nll_backward.workspace),
    ),
    "ctc_loss": (
        Method(
            "ctc_lattice",
            ctc_lattice.run,
            "the forward recursion in logarithms",
            ctc_lattice.rejects,
            ctc_lattice.workspace,
        ),
    ),
    "ctc_loss_backward": (
        Method(
            "ctc_gradient",
            ctc_gradient.run,
            "both recursions side by side, then the posteriors of the states",
            ctc_gradient.rejects,
            ctc_gradient.workspace,
        ),
    ),
    **linear.ALGORITHMS,
}
