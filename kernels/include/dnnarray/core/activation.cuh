// Every activation once: forward(x, p, q) and gradient(g, x, p, q) with up to two parameters, for stand-alone and fused
// use.
//
// Where a function is flat its gradient is a plain 0, also for an infinite or NaN g; NaN in gives NaN out; on a kink
// the value is that of the CPU engine. The curved ones are templates over their arithmetic (math.cuh): `Gelu` is exact
// to a few units of the last place of float or double, `HalfGelu` the faster one whose result is to be rounded to a
// half type.
#pragma once

#include "dnnarray/core/math.cuh"

namespace dnnarray {

#define DNNARRAY_FORWARD \
  template <typename A>  \
  static __device__ __forceinline__ A forward
#define DNNARRAY_GRADIENT \
  template <typename A>   \
  static __device__ __forceinline__ A gradient

// --- straight pieces -------------------------------------------------------------------------------------------------

struct Identity {
  DNNARRAY_FORWARD(A x, A, A) { return x; }
  DNNARRAY_GRADIENT(A g, A, A, A) { return g; }
};

// x > 0 ? x : 0 would turn NaN into 0.
struct Relu {
  DNNARRAY_FORWARD(A x, A, A) { return x < A(0) ? A(0) : x; }
  DNNARRAY_GRADIENT(A g, A x, A, A) { return x <= A(0) ? A(0) : g; }
};

struct HardTanh {  // p, q: least and largest result
  DNNARRAY_FORWARD(A x, A p, A q) { return x < p ? p : x > q ? q : x; }
  DNNARRAY_GRADIENT(A g, A x, A p, A q) { return x > p && x < q ? g : A(0); }
};

struct ClippedRelu {  // p: largest result
  DNNARRAY_FORWARD(A x, A p, A) { return HardTanh::forward(x, A(0), p); }
  DNNARRAY_GRADIENT(A g, A x, A p, A) { return HardTanh::gradient(g, x, A(0), p); }
};

struct Relu6 {
  DNNARRAY_FORWARD(A x, A, A) { return HardTanh::forward(x, A(0), A(6)); }
  DNNARRAY_GRADIENT(A g, A x, A, A) { return HardTanh::gradient(g, x, A(0), A(6)); }
};

struct LeakyRelu {  // p: negative slope
  DNNARRAY_FORWARD(A x, A p, A) { return x > A(0) ? x : x * p; }
  DNNARRAY_GRADIENT(A g, A x, A p, A) { return x > A(0) ? g : g * p; }
};

struct Threshold {  // p: threshold, q: value at and below it
  DNNARRAY_FORWARD(A x, A p, A q) { return x <= p ? q : x; }
  DNNARRAY_GRADIENT(A g, A x, A p, A) { return x <= p ? A(0) : g; }
};

// The product is rounded before the sum, so that the bends lie where every engine has them.
struct HardSigmoid {  // p: slope, q: value at 0
  DNNARRAY_FORWARD(A x, A p, A q) { return HardTanh::forward(rounded_product(x, p) + q, A(0), A(1)); }
  DNNARRAY_GRADIENT(A g, A x, A p, A q) {
    const A line = rounded_product(x, p) + q;
    return line > A(0) && line < A(1) ? g * p : A(0);
  }
};

struct HardSwish {
  DNNARRAY_FORWARD(A x, A, A) { return x * (HardTanh::forward(x + A(3), A(0), A(6)) * A(1.0 / 6)); }
  DNNARRAY_GRADIENT(A g, A x, A, A) { return x <= A(-3) ? A(0) : x >= A(3) ? g : g * (x * A(1.0 / 3) + A(0.5)); }
};

// --- exponential pieces ----------------------------------------------------------------------------------------------

template <typename M>
struct EluOf {  // p: alpha
  DNNARRAY_FORWARD(A x, A p, A) {
    const A below = p * M::expm1(x);
    return x > A(0) ? x : below;
  }
  DNNARRAY_GRADIENT(A g, A x, A p, A) { return x > A(0) ? g : g * (p * M::exp(x)); }
};

template <typename M>
struct SeluOf {  // p: alpha, q: gamma
  DNNARRAY_FORWARD(A x, A p, A q) { return q * EluOf<M>::forward(x, p, q); }
  DNNARRAY_GRADIENT(A g, A x, A p, A q) { return EluOf<M>::gradient(g * q, x, p, q); }
};

template <typename M>
struct CeluOf {  // p: alpha
  DNNARRAY_FORWARD(A x, A p, A) { return x > A(0) ? x : p * M::expm1(M::divide(x, p)); }
  DNNARRAY_GRADIENT(A g, A x, A p, A) { return x > A(0) ? g : g * M::exp(M::divide(x, p)); }
};

template <typename M>
struct SigmoidOf {
  DNNARRAY_FORWARD(A x, A, A) { return M::divide(A(1), A(1) + M::exp(-x)); }
  DNNARRAY_GRADIENT(A g, A x, A, A) { return g * slope(x); }
  // s (1 - s), without the cancellation.
  template <typename A>
  static __device__ __forceinline__ A slope(A x) {
    const A e = M::exp(-absolute(x)), d = e + A(1);
    return M::divide(M::divide(e, d), d);
  }
  template <typename A>
  static __device__ __forceinline__ A value(A x) {
    return forward(x, A(0), A(0));
  }
};

template <typename M>
struct LogSigmoidOf {
  DNNARRAY_FORWARD(A x, A, A) { return (x < A(0) ? x : A(0)) - M::log1p(M::exp(-absolute(x))); }
  DNNARRAY_GRADIENT(A g, A x, A, A) { return g * SigmoidOf<M>::value(-x); }
};

template <typename M>
struct TanhOf {
  DNNARRAY_FORWARD(A x, A, A) { return M::tanh(x); }
  // 1 - tanh(x)^2 = 4 s(2x) (1 - s(2x))
  DNNARRAY_GRADIENT(A g, A x, A, A) { return g * (A(4) * SigmoidOf<M>::slope(A(2) * x)); }
};

template <typename M>
struct SoftplusOf {  // p: beta, q: threshold
  DNNARRAY_FORWARD(A x, A p, A q) {
    const A scaled = x * p;
    const A y = M::log1p(M::exp(-absolute(scaled))) + (scaled > A(0) ? scaled : A(0));
    return scaled > q ? x : y * (A(1) / p);
  }
  DNNARRAY_GRADIENT(A g, A x, A p, A q) {
    const A scaled = x * p;
    return scaled > q ? g : g * SigmoidOf<M>::value(scaled);
  }
};

template <typename M>
struct SoftsignOf {
  DNNARRAY_FORWARD(A x, A, A) {
    const A d = absolute(x) + A(1),
            scale = d > A(1e37) ? A(0.25) : A(1);  // 1 / d itself may be below the range of float
    return M::divide(x * scale, d * scale);
  }
  DNNARRAY_GRADIENT(A g, A x, A, A) {
    const A d = absolute(x) + A(1);
    return M::divide(M::divide(g, d), d);
  }
};

template <typename M>
struct SiluOf {  // p: beta
  DNNARRAY_FORWARD(A x, A p, A) { return x * SigmoidOf<M>::value(x * p); }
  DNNARRAY_GRADIENT(A g, A x, A p, A) {
    const A scaled = x * p;
    return g * (scaled * SigmoidOf<M>::slope(scaled) + SigmoidOf<M>::value(scaled));
  }
};

template <typename M>
struct GeluOf {
  DNNARRAY_FORWARD(A x, A, A) { return x * M::normal_cdf(x); }
  DNNARRAY_GRADIENT(A g, A x, A, A) {
    A bell;
    const A cdf = M::normal_cdf(x, bell);
    return g * (bell * x * A(0.39894228040143267794) + cdf);
  }
};

// (1 + tanh(u)) / 2 is the logistic function of 2u.
template <typename M>
struct GeluTanhOf {
  DNNARRAY_FORWARD(A x, A, A) { return x * SigmoidOf<M>::value(twice_inner(x)); }
  DNNARRAY_GRADIENT(A g, A x, A, A) {
    x = HardTanh::forward(x, A(-50), A(50));  // keeps the cube, and 0 times the cube, finite
    const A inner = twice_inner(x), rise = A(kRate) * (A(1) + A(3 * kCubic) * x * x) * x;
    return g * (rise * SigmoidOf<M>::slope(inner) + SigmoidOf<M>::value(inner));
  }
  static constexpr double kCubic = 0.044715, kRate = 1.59576912160573071176;  // 2 sqrt(2 / pi)
  template <typename A>
  static __device__ __forceinline__ A twice_inner(A x) {
    return A(kRate) * (x + A(kCubic) * x * x * x);
  }
};

// With e = exp(x) and n = e (e + 2), tanh(softplus(x)) is n / (n + 2). From 40 on mish is x.
template <typename M>
struct MishOf {
  DNNARRAY_FORWARD(A x, A, A) {
    const A e = M::exp(x > A(40) ? A(40) : x), n = e * (e + A(2));
    return x * M::divide(n, n + A(2));
  }
  // t + x s (1 - t^2) with t as above and s = e / (1 + e); 1 - t^2 = 4 (1 + e)^2 / (n + 2)^2.
  DNNARRAY_GRADIENT(A g, A x, A, A) {
    x = x > A(40) ? A(40) : x;
    const A e = M::exp(x), n = e * (e + A(2)), d = n + A(2);
    return g * M::divide(x * M::divide(A(4) * e * (e + A(1)), d) + n, d);
  }
};

// --- gradients from the result, of the functions above whose slope is a polynomial in it
// --------------------------------

struct SigmoidByResult {
  DNNARRAY_GRADIENT(A g, A y, A, A) { return g * (y * (A(1) - y)); }
};

struct TanhByResult {
  DNNARRAY_GRADIENT(A g, A y, A, A) { return g * ((A(1) - y) * (A(1) + y)); }
};

#undef DNNARRAY_FORWARD
#undef DNNARRAY_GRADIENT

#define DNNARRAY_BOTH(name)       \
  using name = name##Of<Precise>; \
  using Half##name = name##Of<Quick>
DNNARRAY_BOTH(Elu);
DNNARRAY_BOTH(Selu);
DNNARRAY_BOTH(Celu);
DNNARRAY_BOTH(Sigmoid);
DNNARRAY_BOTH(LogSigmoid);
DNNARRAY_BOTH(Tanh);
DNNARRAY_BOTH(Softplus);
DNNARRAY_BOTH(Softsign);
DNNARRAY_BOTH(Silu);
DNNARRAY_BOTH(Gelu);
DNNARRAY_BOTH(GeluTanh);
DNNARRAY_BOTH(Mish);
#undef DNNARRAY_BOTH

}  // namespace dnnarray
