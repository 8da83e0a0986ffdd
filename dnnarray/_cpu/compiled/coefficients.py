"""Coefficients that NumPy and the compiled kernels share."""

# The share of the normal distribution beyond x >= 0 is exp(-x^2 / 2) t P(t) with t = 1 / (1 + 0.305 x), the highest
# power first: a fit of the smallest error in relation to the share up to x = 14.6, beyond which the share is no float32
# (1.1e-7), exactly 1/2 at 0.
GELU_TAIL_SLOPE = 0.305
GELU_TAIL = (
    3.645293414592743e-02, -1.51999369263649e-01, 1.84076189994812e-01, -3.652438148856163e-02, 1.2028346210718155e-01,
    1.036355122923851e-01, 1.224338635802269e-01, 1.2164179235696793e-01,
)  # fmt: skip
