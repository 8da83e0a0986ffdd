"""Losses."""

from __future__ import annotations

from typing import Any

import dnnarray as dnn
from dnnarray.interop.onnx.registry import Node, operator

# No label of ONNX is ignored unless the node says which; this one can be none.
_NO_LABEL = -(2**31)


def _options(node: Node) -> dict[str, Any]:
    return {"ignore_index": node.get("ignore_index", _NO_LABEL), "reduction": node.get("reduction", "mean")}


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(node: Node, log_probs: Any, target: Any, weight: Any = None) -> Any:
    return dnn.nll_loss(log_probs, target, weight=weight, **_options(node))


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(node: Node, scores: Any, labels: Any, weights: Any = None) -> Any:
    loss = dnn.cross_entropy(scores, labels, weight=weights, **_options(node))
    return (loss, dnn.log_softmax(scores, axis=1)) if node.wants(1) else loss
