// What the kernels of connectionist temporal classification share: logarithms to base 2, and where a sequence and its
// target lie.
#pragma once

#include "dnnarray/core/reduce.cuh"

namespace dnnarray {

__device__ __forceinline__ float exp2_of(float x) { return exp2f(x); }
__device__ __forceinline__ double exp2_of(double x) { return exp2(x); }
__device__ __forceinline__ float log2_of(float x) { return __log2f(x); }
__device__ __forceinline__ double log2_of(double x) { return log2(x); }

template <typename A>
struct Base2 {
  static __device__ __forceinline__ A log2_e() { return A(1.4426950408889634074); }
  static __device__ __forceinline__ A ln_2() { return A(0.69314718055994530942); }
};

// log2(2^a + 2^b + 2^c); -inf where all are, NaN where one is.
template <typename A>
__device__ __forceinline__ A log2_add(A a, A b, A c) {
  A peak = a > b ? a : b;
  peak = peak > c ? peak : c;
  if (peak == -infinity(A(0))) peak = A(0);
  return peak + log2_of(exp2_of(a - peak) + exp2_of(b - peak) + exp2_of(c - peak));
}

struct CtcSequence {
  long long steps, labels, start;  // `start` is where its labels begin in targets
  bool valid;

  __device__ __forceinline__ long long states() const { return 2 * labels + 1; }
};

// Sequence n. Its labels are row n of targets (batch, extent), or stand behind those of the sequences before it in
// targets (extent). A length outside of the arrays makes it invalid. All threads of the block must come; `sums` holds a
// value per warp.
template <bool kPadded, int kThreads, typename Steps, typename Count>
__device__ __forceinline__ CtcSequence ctc_sequence(long long n, const Steps* input_lengths,
                                                    const Count* target_lengths, long long steps, long long extent,
                                                    long long* sums) {
  CtcSequence found{static_cast<long long>(input_lengths[n]), static_cast<long long>(target_lengths[n]), n * extent,
                    true};
  found.valid = found.steps >= 0 && found.steps <= steps && found.labels >= 0 && found.labels <= extent;
  if constexpr (!kPadded) {
    long long before = 0;
    for (long long i = threadIdx.x; i < n; i += kThreads) before += static_cast<long long>(target_lengths[i]);
    found.start = block_reduce<kThreads>(before, Sum(), sums);
    found.valid = found.valid && found.start >= 0 && found.start <= extent - found.labels;
  }
  return found;
}

}  // namespace dnnarray
