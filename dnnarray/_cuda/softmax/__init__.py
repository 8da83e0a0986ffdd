"""Softmax and its relatives: the algorithms, each with its plan in the module and its kernel in the file of the same
name."""

from dnnarray._cuda.softmax import cluster_columns, cluster_rows, columns, long_rows, rows
from dnnarray._select import Method

_METHODS = (
    Method("rows", rows.run, "a row in the registers of one block", rows.rejects, cost=rows.cost),
    Method(
        "cluster_rows",
        cluster_rows.run,
        "a row in the shared memory of a cluster of blocks",
        cluster_rows.rejects,
        cost=cluster_rows.cost,
        unfit=cluster_rows.unfit,
    ),
    Method(
        "long_rows",
        long_rows.run,
        "a row of any length, read twice by one block",
        long_rows.rejects,
        cost=long_rows.cost,
    ),
    Method(
        "cluster_columns",
        cluster_columns.run,
        "columns in the shared memory of a cluster of blocks",
        cluster_columns.rejects,
        unfit=cluster_columns.unfit,
    ),
    Method(
        "columns", columns.run, "columns of any length, read twice by one block", columns.rejects, cost=columns.cost
    ),
)
_NAMES = ("softmax", "log_softmax", "softmin")
ALGORITHMS: dict[str, tuple[Method, ...]] = dict.fromkeys((*_NAMES, *(f"{name}_backward" for name in _NAMES)), _METHODS)
