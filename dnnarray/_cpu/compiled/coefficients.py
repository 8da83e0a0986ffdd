"""Coefficients that NumPy and the compiled kernels share."""

# erfc(z) = exp(-z^2) t R(t), t = 1 / (1 + z / 2): a minimax fit of R, the highest power first, on 0 <= z <= 10.2 with relative error 4e-8.
ERFC_RATIO = (
    -0.05912459625849359, 0.28484700004765073, -0.48776451265682286, 0.27871477032666747, -0.027073051639005415, 0.20287674566195313,
    0.24305561256539793, 0.28238195121116494, 0.2820860376360941,
)  # fmt: skip
