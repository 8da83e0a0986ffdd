"""Losses: negative log likelihood, which cross-entropy ends in, and CTC."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import ABOVE_AUTOGRAD, decline, differentiable, kernel

_REDUCTIONS: tuple[Literal["none", "mean", "sum"], ...] = ("none", "mean", "sum")  # by PyTorch's numbers


def _axis(scores: Tensor) -> int:
    return 1 if scores.dim() > 1 else 0


@kernel("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {"ignore_index": ignore_index, "axis": _axis(scores)}
    loss = dnn.nll_loss(scores, target, weight=weight, reduction=_REDUCTIONS[reduction], **options)
    return loss, _total_weight(scores, target, weight, reduction, ignore_index)


def _total_weight(scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Tensor:
    """The sum of the weights of the targets that count, which PyTorch's gradient of a mean divides by; 0 where nothing
    is reduced.
    """
    if reduction == 0 and target.dim() > 0:
        return scores.new_zeros(())
    counted = target != ignore_index
    if weight is None:
        return counted.sum().to(scores.dtype)
    return (weight[target.where(counted, 0)] * counted).sum()


@kernel("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    options: dict[str, Any] = {"ignore_index": ignore_index, "axis": _axis(scores)}
    return dnn.nll_loss_backward(grad, scores, target, weight=weight, reduction=_REDUCTIONS[reduction], **options)


def _lengths(lengths: Any, log_probs: Tensor) -> Tensor:
    """Lengths as a tensor beside the scores; PyTorch takes a list of numbers, or a tensor on the processor, for scores
    on any device.
    """
    if isinstance(lengths, Tensor) and lengths.device != log_probs.device:
        raise decline("ctc_loss: lengths on another device than log_probs")
    return lengths if isinstance(lengths, Tensor) else torch.tensor(lengths, dtype=torch.int64, device=log_probs.device)


@kernel("ctc_loss.IntList", "ctc_loss.Tensor", keys=ABOVE_AUTOGRAD)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    if targets.device != log_probs.device:
        raise decline("ctc_loss: targets on another device than log_probs")
    lengths = _lengths(input_lengths, log_probs), _lengths(target_lengths, log_probs)
    options = {"blank": blank, "reduction": _REDUCTIONS[reduction], "zero_infinity": zero_infinity}
    return differentiable("ctc_loss")(log_probs, targets, *lengths, **options)
