// The statistics of a softmax in one pass: the maximum so far, and sums that are rescaled when it grows.
#pragma once

#include "dnnarray/core/math.cuh"
#include "dnnarray/core/reduce.cuh"

namespace dnnarray {

// The maxima of two halves by two halves, from sm_80 on.
__device__ __forceinline__ unsigned largest_pair(unsigned a, unsigned b, float16_t) { return max_nan_f16x2(a, b); }
__device__ __forceinline__ unsigned largest_pair(unsigned a, unsigned b, bfloat16_t) { return max_nan_bf16x2(a, b); }

// `sum` of exp(x - shift) and `dot` of g exp(x - shift), where shift is the maximum, or 0 as long as nothing but -inf
// was seen.
template <typename A, typename M>
struct Online {
  A largest = -infinity(A(0)), sum = A(0), dot = A(0);

  static __device__ __forceinline__ A shift_of(A largest) { return largest == -infinity(A(0)) ? A(0) : largest; }

  // Raises the maximum to at least `candidate` and returns what is to be subtracted before the exponential.
  __device__ __forceinline__ A raise(A candidate) {
    const A next = Max()(largest, candidate), shift = shift_of(next), factor = M::exp(largest - shift);
    largest = next;
    sum *= factor;
    dot *= factor;
    return shift;
  }

  // Takes N elements, and with kDot their factors g too.
  template <bool kDot, int N>
  __device__ __forceinline__ void add(const A (&x)[N], const A (&g)[N]) {
    A candidate = x[0];
#pragma unroll
    for (int j = 1; j < N; ++j) candidate = Max()(candidate, x[j]);
    const A shift = raise(candidate);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const A e = M::exp(x[j] - shift);
      sum += e;
      if constexpr (kDot) dot += g[j] * e;
    }
  }

  // Takes what another has seen.
  __device__ __forceinline__ void merge(A other_largest, A other_sum, A other_dot) {
    const A shift = raise(other_largest), factor = M::exp(other_largest - shift);
    sum += other_sum * factor;
    dot += other_dot * factor;
  }
};

// What the results of softmax and its relatives need of a row or column, and the formulas; C holds the settings of the
// kernel. `dot` is the sum of g y, or for the logarithm the sum of g; `x` is the saved result with kSaved.
template <typename C, typename A, typename M>
struct Statistics {
  A largest, scale, log_sum, dot;

  __device__ __forceinline__ A result(A g, A x) const {
    if constexpr (!C::kGradient) {
      return C::kLogarithm ? x - largest - log_sum : M::exp(x - largest) * scale;
    } else if constexpr (C::kLogarithm) {
      return g - (C::kSaved ? M::exp(x) : M::exp(x - largest) * scale) * dot;
    } else {
      return (C::kNegative ? dot - g : g - dot) * (C::kSaved ? x : M::exp(x - largest) * scale);
    }
  }
};

}  // namespace dnnarray
