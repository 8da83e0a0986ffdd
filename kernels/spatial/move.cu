// y = x with its axes permuted: y[i_0, ..., i_r] = x[sum of i_k * step_k], for elements of any type of 1, 2, 4, 8 or 16 bytes.
//
// Layout:  y is dense, the last axis fastest; a thread owns kVector neighbours of y, finds the place of the first by divisions and walks on.
//          Axes that stay neighbours are one axis, and runs of 16 bytes that stay together one element: both are the plan's work.
// Needs:   y aligned to kVector elements, x to one.
// Bound:   memory: x read once, y written once, where the reads of a block share sectors.

#include "dnnarray/vec.cuh"
#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kBytes = 4;
  static constexpr int kRank = 4;
  static constexpr int kVector = 4;
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
constexpr int kVector = Config::kVector, kRank = Config::kRank, kMost = 8;

// Extents n* and steps s* of x from the slowest axis of y to the fastest; only the first kRank count.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_x, T* __restrict__ gmem_y, long long total, long long n0, long long n1, long long n2, long long n3,
                   long long n4, long long n5, long long n6, long long n7, long long s0, long long s1, long long s2, long long s3, long long s4,
                   long long s5, long long s6, long long s7) {
  const int extents[kMost] = {int(n0), int(n1), int(n2), int(n3), int(n4), int(n5), int(n6), int(n7)};
  const long long steps[kMost] = {s0, s1, s2, s3, s4, s5, s6, s7};
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (i >= total) return;

  int at[kMost];
  long long from = 0, left = i;
#pragma unroll
  for (int k = kRank - 1; k > 0; --k) {
    const Split part = split(left, extents[k]);
    at[k] = part.rest;
    from += part.rest * steps[k];
    left = part.quotient;
  }
  from += left * steps[0];

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
