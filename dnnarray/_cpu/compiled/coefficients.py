"""Coefficients that NumPy and the compiled kernels share."""

# The share of the normal distribution below x is 1/2 + x P(x^2) for |x| <= 2, the highest power first: error 2e-9.
GELU_NEAR = (
    -1.6666422908429013e-08, 5.2193473720763e-07, -8.957099453255069e-06, 1.1446126882219687e-04, -1.1862065875902772e-03,
    9.97286569327116e-03, -6.649018824100494e-02, 3.989422619342804e-01,
)  # fmt: skip

# The share of the normal distribution beyond x >= 0 is P(x)^-8: a fit of P, the highest power first, that is minimax in max(x, 0.6) times the share (6e-8).
GELU_TAIL_ROOT = (
    3.040841447189073e-06, -1.6240042142165402e-05, 9.594378478100613e-05, 1.494163877182615e-04, 1.028178926170211e-03,
    9.402175599496541e-03, 4.882971072267692e-02, 1.0876080399806465e-01, 1.0905077577408673,
)  # fmt: skip

GELU_VANISHED = 6.5  # from where the fits of the share are farther from it than 0 is

# The same share as P(x)^-4, which multiplies the rounding of P by half as much and takes three more terms (4e-8): three passes too many for NumPy.
GELU_TAIL_FOURTH_ROOT = (
    1.2041037962262635e-06, -1.5355630239355378e-05, 9.704850526759401e-05, -3.2415686291642487e-04, 7.840858306735754e-04,
    -7.011887500993907e-04, 2.583815949037671e-03, 5.953230429440737e-03, 3.141115605831146e-02, 1.1826774477958679e-01,
    2.3721396923065186e-01, 1.1892070770263672,
)  # fmt: skip

# The derivative of gelu is 1/2 + x P(x^2) / Q(x^2) for |x| <= 6, highest powers first: error 3e-8; the derivative is 0 or 1 to 3e-8 beyond.
GELU_SLOPE_P = (
    -2.7637413495540386e-06, 5.011941539123654e-04, -1.8152978271245956e-02, 5.94028377532959, -2.6662410736083984e01,
    2.614875732421875e03, -7.471525390625e03, 1.4359071875e05,
)  # fmt: skip
GELU_SLOPE_Q = (1.0, 2.7032329559326172e01, 5.313086547851562e02, 6.6536328125e03, 5.062434765625e04, 1.7996421875e05)
