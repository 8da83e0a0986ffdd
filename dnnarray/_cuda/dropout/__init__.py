"""Dropout, alone and fused: the algorithms, each with its plan in the module and its kernel in the file of the same
name."""

from dnnarray._cuda.dropout import bias_add, bias_add_backward, philox
from dnnarray._select import Method

_SUMMARY = "the mask is drawn where it is used"
_PHILOX = Method("philox", philox.run, _SUMMARY, philox.rejects, in_place=True)
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "dropout": (_PHILOX,),
    "dropout_backward": (_PHILOX,),
    "bias_dropout_add": (Method("bias_add", bias_add.run, _SUMMARY, bias_add.rejects),),
    "bias_dropout_add_backward": (
        Method(
            "bias_add_backward", bias_add_backward.run, _SUMMARY, bias_add_backward.rejects, bias_add_backward.workspace
        ),
    ),
}
