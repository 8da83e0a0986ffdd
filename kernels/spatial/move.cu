// y = x with its axes permuted: y[i_0, ..., i_r] = x[sum of i_k * step_k], for elements of any type of 1, 2, 4, 8 or 16 bytes.
//
// Layout:  y is dense, the last axis fastest; a thread owns kVector neighbours of y and finds the place of the first by divisions: short ones,
//          by multiplication, where kShort says that all numbers are below 2^31. kInner neighbours follow one another along the last axis
//          (kVector or all of that axis; 0: any number), kMiddle along the axis before it (all of that axis, or 1 where it is skipped), the rest
//          along the axis before those, where kRun of them lie beside each other in x. Axes that stay neighbours are one axis, and runs of 16 bytes that stay together one element: both are the plan's work.
// Needs:   y aligned to kVector elements, x to kRun.
// Bound:   memory: x read once, y written once, where the reads of a block share sectors.

#include "dnnarray/vec.cuh"
#include "dnnarray/window.cuh"

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
#define DNNARRAY_ENTRY spatial_move_default
#endif

using namespace dnnarray;
template <int kBytes>
struct Unit {
  using type = Vec<unsigned, 4>;
};
template <>
struct Unit<8> {
  using type = unsigned long long;
};
template <>
struct Unit<4> {
  using type = unsigned;
};
template <>
struct Unit<2> {
  using type = unsigned short;
};
template <>
struct Unit<1> {
  using type = unsigned char;
};
using T = Unit<Config::kBytes>::type;
constexpr int kVector = Config::kVector, kRank = Config::kRank, kMost = 8, kInner = Config::kInner, kRun = Config::kRun;
constexpr int kMiddle = Config::kMiddle, kOuterAxis = kMiddle > 1 ? kRank - 3 : kRank - 2;

// i / extent and the rest. `magic` holds ceil(2^(31 + s) / extent) and, above 32 bits, s - 1 for the s with 2^s >= extent.
__device__ __forceinline__ long long divide(long long& i, int extent, long long magic) {
  if constexpr (Config::kShort) {
    const unsigned whole = static_cast<unsigned>(i), by = static_cast<unsigned>(magic);
    const unsigned quotient = __umulhi(whole, by) >> static_cast<unsigned>(magic >> 32);
    i = quotient;
    return whole - quotient * static_cast<unsigned>(extent);
  }
  const Split part = split(i, extent);
  i = part.quotient;
  return part.rest;
}

// kVector elements that do not leave the last axes.
__device__ __forceinline__ Vec<T, kVector> inner(const T* x, long long outer_step, long long middle_step, long long inner_step) {
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

// Extents n* and steps s* of x from the slowest axis of y to the fastest, and magic numbers m* of the extents but the slowest; only the first
// kRank count.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_x, T* __restrict__ gmem_y, long long total, long long n0, long long n1, long long n2, long long n3,
                   long long n4, long long n5, long long n6, long long n7, long long s0, long long s1, long long s2, long long s3, long long s4,
                   long long s5, long long s6, long long s7, long long m1, long long m2, long long m3, long long m4, long long m5,
                   long long m6, long long m7) {
  const int extents[kMost] = {int(n0), int(n1), int(n2), int(n3), int(n4), int(n5), int(n6), int(n7)};
  const long long steps[kMost] = {s0, s1, s2, s3, s4, s5, s6, s7}, magics[kMost] = {0, m1, m2, m3, m4, m5, m6, m7};
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i >= total) return;

  int at[kMost];
  long long from = 0, left = i;
#pragma unroll
  for (int k = kRank - 1; k > 0; --k) {
    at[k] = static_cast<int>(divide(left, extents[k], magics[k]));
    from += at[k] * steps[k];
  }
  from += left * steps[0];
  if constexpr (kInner > 0) {
    const long long outer_step = kOuterAxis >= 0 ? steps[kOuterAxis >= 0 ? kOuterAxis : 0] : 0;
    const long long middle_step = kMiddle > 1 ? steps[kRank > 1 ? kRank - 2 : 0] : 0;
    store(gmem_y + i, inner(gmem_x + from, outer_step, middle_step, steps[kRank - 1]));
    return;
  }

  Vec<T, kVector> reg_y;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (i + j < total) reg_y.at[j] = gmem_x[from];
    bool carry = true;
#pragma unroll
    for (int k = kRank - 1; k > 0; --k) {
      if (carry) {
        carry = ++at[k] == extents[k];
        from += steps[k];
        if (carry) at[k] = 0, from -= extents[k] * steps[k];
      }
    }
    if (carry) from += steps[0];
  }
  if (i + kVector <= total) {
    store(gmem_y + i, reg_y);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      if (i + j < total) gmem_y[i + j] = reg_y.at[j];
  }
}
