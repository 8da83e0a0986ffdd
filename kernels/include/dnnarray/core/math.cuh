// Transcendental functions in two classes: `Precise` for results in float and double, `Quick` for results that are
// rounded to a half type.
#pragma once

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/ptx/approximate.cuh"
#include "dnnarray/ptx/extremes.cuh"

namespace dnnarray {

__device__ __forceinline__ float absolute(float x) { return fabsf(x); }
__device__ __forceinline__ double absolute(double x) { return fabs(x); }

// x * y, never fused with a sum that follows.
__device__ __forceinline__ float rounded_product(float x, float y) { return __fmul_rn(x, y); }
__device__ __forceinline__ double rounded_product(double x, double y) { return __dmul_rn(x, y); }

// 1 / x to the last place for an x from 1 to 2^126, in half the instructions of a division.
__device__ __forceinline__ float reciprocal(float x) {
  const float y = rcp_approx_ftz(x);
  return y * (2.0f - x * y);
}
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

// Held between `low` and `high`; NaN stays NaN.
__device__ __forceinline__ float held_between(float x, float low, float high) { return min_nan(max_nan(x, low), high); }

// The normal distribution left of -|x| as a multiple of exp(-x^2 / 2): P(t) t with t = 1 / (1 + 0.31 |x|), where P was
// fitted to the smallest relative error, 5e-6 up to |x| = 14.
__device__ __forceinline__ float normal_tail(float x) {
  const float t = rcp_approx_ftz(1 + 0.31f * absolute(x));
  float p = -0.0739370444f;
  p = p * t + 0.180470124f;
  p = p * t + 0.0157278476f;
  p = p * t + 0.133434888f;
  p = p * t + 0.120441303f;
  p = p * t + 0.123860538f;
  return p * t;
}

// Within a few units of the last place.
struct Precise {
  static __device__ __forceinline__ float exp(float x) { return expf(x); }
  static __device__ __forceinline__ double exp(double x) { return ::exp(x); }
  // With the nearest whole number j to x / ln 2 and r = x - j ln 2, 2^j (exp(r) - 1) + 2^j - 1; adding 1.5 2^23 rounds
  // to j and leaves it in the last bits. The series was fitted to the smallest relative error, 1.4e-8; all are halved,
  // so that 2^128 is not met on the way. The library's function has more instructions, and a branch for each number.
  static __device__ __forceinline__ float expm1(float x) {
    const float held = held_between(x, -87.0f, 89.0f), shifted = held * 1.44269504088896340736f + 12582912.0f,
                j = shifted - 12582912.0f;
    const float r = held - j * 0.693145751953125f - j * 1.428606765330187045e-06f;
    const float series = 0.5f + r * (0.16666542f + r * (0.041666277f + r * (0.0083667431f + r * 0.0013946723f)));
    const float power = __int_as_float((__float_as_int(shifted) << 23) + 0x3f000000);  // 2^(j - 1)
    const float half = (r * series * r + r) * power + (power - 0.5f);
    return half + half;
  }
  static __device__ __forceinline__ double expm1(double x) { return ::expm1(x); }
  static __device__ __forceinline__ float log(float x) { return logf(x); }
  static __device__ __forceinline__ double log(double x) { return ::log(x); }
  // For x from 0 to 1. 2 artanh(s) with s = x / (2 + x); the series in s^2 was fitted to the smallest relative error,
  // 5e-9. The library's function, for any x, has twice the instructions.
  static __device__ __forceinline__ float log1p(float x) {
    const float s = x * rcp_approx_ftz(2 + x), z = s * s, twice = s + s;
    return twice * z * (0.33333206f + z * (0.2001085f + z * (0.13999566f + z * 0.14012249f))) + twice;
  }
  static __device__ __forceinline__ double log1p(double x) { return ::log1p(x); }
  static __device__ __forceinline__ float tanh(float x) { return tanhf(x); }
  static __device__ __forceinline__ double tanh(double x) { return ::tanh(x); }
  // The left side is 2^P(|x|), P fitted to the smallest absolute error, 1.4e-8, and falling for all larger |x|. 1 + erf
  // takes twice the instructions and loses all digits of the left side.
  static __device__ __forceinline__ float normal_cdf(float x) {
    const float a = absolute(x);
    float p = -2.1120136e-06f;
    p = p * a + 3.1864405e-05f;
    p = p * a - 0.0001556436f;
    p = p * a - 0.00019889392f;
    p = p * a + 0.0071297884f;
    p = p * a - 0.052532595f;
    p = p * a - 0.45919916f;
    p = p * a - 1.1511059f;
    const float left = ex2_approx_ftz(p * a - 1);
    return x > 0 ? 1 - left : left;
  }
  static __device__ __forceinline__ double normal_cdf(double x) { return 0.5 + 0.5 * erf(x * 0.70710678118654752440); }
  // The same, with exp(-x^2 / 2) in `bell`. Left of -4 the relative error is 5e-6, so that a derivative keeps its
  // digits there: the one above has an absolute error that is larger than the distribution itself from -6 on.
  static __device__ __forceinline__ float normal_cdf(float x, float& bell) {
    bell = exp(-0.5f * x * x);
    return x < -4 ? bell * normal_tail(x) : normal_cdf(x);
  }
  static __device__ __forceinline__ double normal_cdf(double x, double& bell) {
    bell = exp(-0.5 * x * x);
    return normal_cdf(x);
  }
  template <typename A>
  static __device__ __forceinline__ A divide(A x, A y) {
    return x / y;
  }
};

// Within 1e-5 of the result: 1/50 of the rounding to float16. Results below 2^-126 are 0.
struct Quick {
  static __device__ __forceinline__ float exp(float x) { return ex2_approx_ftz(x * 1.44269504088896340736f); }
  static __device__ __forceinline__ float log(float x) { return lg2_approx_ftz(x) * 0.69314718055994530942f; }
  static __device__ __forceinline__ float divide(float x, float y) { return x * rcp_approx_ftz(y); }
  static __device__ __forceinline__ float expm1(float x) {
    const float series = x * (1 + x * (0.5f + x * (1.0f / 6 + x * (1.0f / 24 + x * (1.0f / 120 + x * (1.0f / 720))))));
    return absolute(x) < 0.5f ? series : exp(x) - 1;
  }
  // For x from 0 to 1.
  static __device__ __forceinline__ float log1p(float x) { return x < 0.0078125f ? x - 0.5f * x * x : log(1 + x); }
  static __device__ __forceinline__ float tanh(float x) {
    const float s = x * x, series = x * (1 + s * (-1.0f / 3 + s * (2.0f / 15 + s * (-17.0f / 315))));
    return absolute(x) < 0.25f ? series : 1 - 2 * rcp_approx_ftz(1 + exp(2 * x));
  }
  // Leaves exp(-x^2 / 2) in `bell`.
  static __device__ __forceinline__ float normal_cdf(float x, float& bell) {
    bell = ex2_approx_ftz(x * x * -0.72134752044448170368f);
    const float left = bell * normal_tail(x);
    return x > 0 ? 1 - left : left;
  }
  static __device__ __forceinline__ float normal_cdf(float x) {
    float bell;
    return normal_cdf(x, bell);
  }
};

// The class for results that are stored as T.
template <typename T>
struct MathFor {
  using type = Precise;
};
template <>
struct MathFor<float16_t> {
  using type = Quick;
};
template <>
struct MathFor<bfloat16_t> {
  using type = Quick;
};
template <typename T>
using math_t = typename MathFor<T>::type;

}  // namespace dnnarray
