// What a loss must know of a row of scores, gathered in one pass with a running maximum; and the labels of rows.
#pragma once

#include "dnnarray/core/math.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"
#include "dnnarray/ptx/extremes.cuh"

namespace dnnarray {

// The fast exponential is off by a few roundings of the exponent, and 0 below 2^-126; both vanish beside the largest
// term of a sum, exp(0).
__device__ __forceinline__ float quick_exp(float x) { return ex2_approx_ftz(x * 1.4426950408889634f); }
__device__ __forceinline__ double quick_exp(double x) { return exp(x); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }
// The same to within 2e-7, for results that are rounded to a half type T.
template <typename T>
__device__ __forceinline__ arithmetic_t<T> log_for(arithmetic_t<T> x) {
  if constexpr (sizeof(T) == 2) {
    return lg2_approx_ftz(x) * 0.69314718055994530942f;
  } else {
    return log_of(x);
  }
}
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

// What is subtracted before an exponential: the peak, or 0 where every score so far is -inf.
template <typename A>
__device__ __forceinline__ A finite_base(A peak) {
  return peak == -infinity(peak) ? A(0) : peak;
}

// A reduction in pairs; the values are lost.
template <int kCount, typename A, typename Op>
__device__ __forceinline__ A in_pairs(A (&values)[kCount], Op op) {
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int v = 0; v + step < kCount; v += 2 * step) values[v] = op(values[v], values[v + step]);
  }
  return values[0];
}

struct Larger {
  template <typename A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return larger(a, b);
  }
};

// Of some scores z with shares u (the smoothed target, class weights): the peak, sum exp(z - peak), sum u (z - peak),
// sum u. A NaN among the scores makes the sum NaN.
template <typename A>
struct Scores {
  A peak = -infinity(A(0)), sum = A(0), shifted = A(0), share = A(0);

  // Count from a higher peak on. What was -inf so far stays so, and its exponentials are 0 beside any peak.
  __device__ __forceinline__ void raise(A to) {
    if (to == peak) return;
    if (peak != -infinity(A(0))) {
      sum *= quick_exp(peak - to);
      if (share != A(0)) shifted += share * (peak - to);
    }
    peak = to;
  }
  // The same without a branch, where there are no shares.
  __device__ __forceinline__ void lift(A to) {
    sum *= quick_exp(peak - finite_base(to));
    peak = to;
  }
  __device__ __forceinline__ void add(A z) { sum += quick_exp(z - finite_base(peak)); }
  // Several scores at once, after raise(); summed in pairs, which waits less than one after the other.
  template <int kCount>
  __device__ __forceinline__ void add(const A (&z)[kCount]) {
    const A base = finite_base(peak);
    A terms[kCount];
#pragma unroll
    for (int v = 0; v < kCount; ++v) terms[v] = quick_exp(z[v] - base);
    sum += in_pairs(terms, Sum());
  }
  __device__ __forceinline__ void add_share(A z, A u) {
    shifted += u * (z - finite_base(peak));
    share += u;
  }
};

// The loss of a row whose target is the shares: sum u (log sum exp(z) - z).
template <typename A>
__device__ __forceinline__ A share_loss(const Scores<A>& found, A log_sum) {
  return log_sum * found.share - found.shifted;
}

// The sum of a row with a score of infinity is NaN, and that of a row of -inf is 0; NaN does not raise the peak, but
// stays in the sum.
template <typename A>
__device__ __forceinline__ A log_sum_exp(const Scores<A>& found, A log_sum) {
  return found.peak == infinity(found.peak) ? found.peak : finite_base(found.peak) + log_sum;
}

// Over the lanes of a row: kLanes of a warp, or a whole block where kLanes is kThreads. `shared` holds a value per
// warp.
template <int kLanes, int kThreads, typename A, typename Op>
__device__ __forceinline__ A row_reduce(A value, Op op, A* shared) {
  if constexpr (kLanes <= kWarp) {
    return warp_reduce<kLanes>(value, op);
  } else {
    static_assert(kLanes == kThreads, "a row of more than a warp has the block to itself");
    return block_reduce<kThreads>(value, op, shared);
  }
}

template <int kLanes, int kThreads, bool kShares, typename A>
__device__ __forceinline__ void combine(Scores<A>& found, A* shared) {
  found.raise(row_reduce<kLanes, kThreads>(found.peak, Larger(), shared));
  found.sum = row_reduce<kLanes, kThreads>(found.sum, Sum(), shared);
  if constexpr (kShares) {
    found.shifted = row_reduce<kLanes, kThreads>(found.shifted, Sum(), shared);
    found.share = row_reduce<kLanes, kThreads>(found.share, Sum(), shared);
  }
}

// The largest of some vectors, NaN aside; half types by two.
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b, float16_t) { return max_f16x2(a, b); }
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b, bfloat16_t) { return max_bf16x2(a, b); }

template <int kCount, typename T, int kVector>
__device__ __forceinline__ arithmetic_t<T> peak_of(const Vec<T, kVector> (&part)[kCount]) {
  using A = arithmetic_t<T>;
  if constexpr (sizeof(T) == 2 && kVector % 2 == 0) {
    unsigned top[kVector / 2];
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      unsigned pairs[kVector / 2];
      memcpy(pairs, &part[u], sizeof part[u]);
#pragma unroll
      for (int j = 0; j < kVector / 2; ++j) top[j] = u == 0 ? pairs[j] : larger_pair(top[j], pairs[j], T());
    }
    const unsigned pair = in_pairs(top, [](unsigned a, unsigned b) { return larger_pair(a, b, T()); });
    A low, high;
    widen_pair(low, high, pair, T());
    return larger(low, high);
  } else {
    A top[kVector];
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) top[v] = u == 0 ? widen(part[u].at[v]) : larger(top[v], widen(part[u].at[v]));
    }
    return in_pairs(top, Larger());
  }
}

// Of each position of some vectors the largest, NaN aside; half types by two.
template <int kCount, typename T, int kVector>
__device__ __forceinline__ void peaks_of(arithmetic_t<T> (&peaks)[kVector], const Vec<T, kVector> (&part)[kCount]) {
  if constexpr (sizeof(T) == 2 && kVector % 2 == 0) {
#pragma unroll
    for (int j = 0; j < kVector / 2; ++j) {
      unsigned tops[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) memcpy(&tops[u], &part[u].at[2 * j], sizeof tops[u]);
      widen_pair(peaks[2 * j], peaks[2 * j + 1],
                 in_pairs(tops, [](unsigned a, unsigned b) { return larger_pair(a, b, T()); }), T());
    }
  } else {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      arithmetic_t<T> tops[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) tops[u] = widen(part[u].at[v]);
      peaks[v] = in_pairs(tops, Larger());
    }
  }
}

// What a row's gradient is divided by: the sum of some partial sums, or `divisor` where there are none. All lanes of
// the warp must come. The kernel before wrote them.
template <typename A>
__device__ __forceinline__ A total_of(const A* parts, long long count, double divisor) {
  if (!parts) return A(divisor);
  parts = after_previous_kernel(parts);
  A sum = A(0);
  for (long long i = threadIdx.x % kWarp; i < count; i += kWarp) sum += parts[i];
  return warp_sum(sum);
}

// The label of a row. One that names no class is never used as an index; its weight, and so the loss, is NaN.
struct Label {
  long long index;
  bool kept, valid;

  template <typename Integer>
  __device__ __forceinline__ Label(Integer target, long long classes, long long ignore)
      : index(static_cast<long long>(target)), kept(index != ignore), valid(index >= 0 && index < classes) {}

  // 0 for a row to ignore; 1 where there are no class weights.
  template <typename T>
  __device__ __forceinline__ arithmetic_t<T> weight(const T* weights) const {
    using A = arithmetic_t<T>;
    if (!kept) return A(0);
    if (!valid) return quiet_nan(A(0));
    return weights ? widen(weights[index]) : A(1);
  }
};

// What a target gives to each class before its weight: a share of the distribution, or of 1 for labels.
template <typename A>
__device__ __forceinline__ A smoothed(A probability, A smoothing, A spread) {
  return probability * (A(1) - smoothing) + spread;
}

}  // namespace dnnarray
