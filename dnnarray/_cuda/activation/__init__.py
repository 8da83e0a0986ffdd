"""Activations, alone and fused: the algorithms, each with its plan in the module and its kernel in the file of the same
name."""

from dnnarray._cuda.activation import bias, bias_backward, elementwise, gated, prelu, prelu_backward
from dnnarray._problems.activation import PARAMETERS
from dnnarray._select import Method

_ELEMENTWISE = Method("elementwise", elementwise.run, "the formula over each element", in_place=True)
_GATED = Method("gated", gated.run, "the gate and what it lets through in one pass")
_GATED_BACKWARD = Method("gated", gated.run, "both gradients in one pass", gated.rejects, gated.workspace)
_TWO_STAGES = "one pass for all gradients, sums in two stages"
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **dict.fromkeys((*PARAMETERS, *(f"{name}_backward" for name in PARAMETERS)), (_ELEMENTWISE,)),
    **dict.fromkeys(("glu", "glu_backward", "swiglu", "geglu"), (_GATED,)),
    **dict.fromkeys(("swiglu_backward", "geglu_backward"), (_GATED_BACKWARD,)),
    "prelu": (Method("prelu", prelu.run, "the slope of the channel over each element", prelu.rejects),),
    "prelu_backward": (
        Method("prelu_backward", prelu_backward.run, _TWO_STAGES, prelu_backward.rejects, prelu_backward.workspace),
    ),
    "bias_activation": (Method("bias", bias.run, "sum and formula in one pass"),),
    "bias_activation_backward": (
        Method("bias_backward", bias_backward.run, _TWO_STAGES, bias_backward.rejects, bias_backward.workspace),
    ),
}
