// y = x with its axes permuted: y[i_0, ..., i_r] = x[sum of i_k * step_k], for elements of any type of 1, 2, 4, 8 or 16
// bytes.
//
// Layout:  y is dense, the last axis fastest; a thread owns kVector neighbours of y and finds the place of the first by
//          divisions: short ones, by multiplication, where kShort says that all numbers are below 2^31. kInner
//          neighbours follow one another along the last axis (kVector or all of that axis; 0: any number), kMiddle
//          along the axis before it (all of that axis, or 1 where it is skipped), the rest along the axis before those,
//          where kRun of them lie beside each other in x. Axes that stay neighbours are one axis, and runs of 16 bytes
//          that stay together one element: both are the plan's work.
// Needs:   y aligned to kVector elements, x to kRun.
// Bound:   memory: x read once, y written once, where the reads of a block share sectors.

#include "dnnarray/core/overlap.cuh"
#include "spatial/walk.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kBytes = 4;
  static constexpr int kRank = 4;
  static constexpr int kVector = 4;
  static constexpr int kInner = 0;
  static constexpr int kMiddle = 1;
  static constexpr int kRun = 1;
  static constexpr bool kShort = true;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  unsigned long long words[16];
};
#define DNNARRAY_ENTRY spatial_move_default
#endif

using namespace dnnarray;
using T = Unit<Config::kBytes>::type;
using I = Count<Config::kShort>::type;
constexpr int kVector = Config::kVector, kRank = Config::kRank, kMost = 8, kInner = Config::kInner, kRun = Config::kRun;
constexpr int kMiddle = Config::kMiddle, kOuterAxis = kMiddle > 1 ? kRank - 3 : kRank - 2;

// kVector elements that do not leave the last axes.
__device__ __forceinline__ Vec<T, kVector> inner(const T* x, I outer_step, I middle_step, I inner_step) {
  Vec<T, kVector> found;
#pragma unroll
  for (int b = 0; b < kInner; ++b) {
#pragma unroll
    for (int m = 0; m < kMiddle; ++m) {
#pragma unroll
      for (int a = 0; a < kVector / (kInner * kMiddle); a += kRun) {
        const Vec<T, kRun> run = load<T, kRun>(x + a * outer_step + m * middle_step + b * inner_step);
#pragma unroll
        for (int r = 0; r < kRun; ++r) found.at[((a + r) * kMiddle + m) * kInner + b] = run.at[r];
      }
    }
  }
  return found;
}

// Two words for each axis of y, of which kRank count, from the slowest to the fastest.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const unsigned long long* const w = a.words;
  const Walk<Config::kShort> walks[kMost] = {{w[0], w[1]}, {w[2], w[3]},   {w[4], w[5]},   {w[6], w[7]},
                                             {w[8], w[9]}, {w[10], w[11]}, {w[12], w[13]}, {w[14], w[15]}};
  begin_ahead();
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i >= a.total) return;

  unsigned at[kMost];
  I from = 0, left = static_cast<I>(i);
#pragma unroll
  for (int k = kRank - 1; k > 0; --k) {
    at[k] = walks[k].split_off(left);
    from += at[k] * walks[k].step;
  }
  from += left * walks[0].step;
  if constexpr (kInner > 0) {
    const I outer_step = kOuterAxis >= 0 ? walks[kOuterAxis >= 0 ? kOuterAxis : 0].step : 0;
    const I middle_step = kMiddle > 1 ? walks[kRank > 1 ? kRank - 2 : 0].step : 0;
    x += from;
    take_after_previous_kernel(x);
    store(y + i, inner(x, outer_step, middle_step, walks[kRank - 1].step));
    return;
  }

  take_after_previous_kernel(x);
  Vec<T, kVector> reg_y;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (i + j < a.total) reg_y.at[j] = x[from];
    bool carry = true;
#pragma unroll
    for (int k = kRank - 1; k > 0; --k) {
      if (carry) {
        carry = ++at[k] == walks[k].n;
        from += walks[k].step;
        if (carry) at[k] = 0, from -= walks[k].n * walks[k].step;
      }
    }
    if (carry) from += walks[0].step;
  }
  if (i + kVector <= a.total) {
    store(y + i, reg_y);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      if (i + j < a.total) y[i + j] = reg_y.at[j];
  }
}
