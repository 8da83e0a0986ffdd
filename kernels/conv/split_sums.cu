// out[i] = sum over s of partial[s, i], brought to another memory and type: the second stage of a weight gradient.
//
// Layout:  partial is splits x n, dense; out by strides, which may be negative. kLanes warps of a block own every kLanes-th part of the same
//          elements.
// Needs:   nothing.
// Bound:   memory: partial read once.

#include "dnnarray/index.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kLanes = 1;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_split_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kLanes = Config::kLanes, kOwn = Config::kThreads / kLanes;  // elements of a block

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ partial, T* __restrict__ out, long long n, long long splits, long long n1, long long n2,
                   long long n3, long long n4, long long t0, long long t1, long long t2, long long t3, long long t4) {
  const Strided to = {n1, n2, n3, n4, t0, t1, t2, t3, t4};
  const int own = threadIdx.x % kOwn, lane = threadIdx.x / kOwn;
  const long long i = static_cast<long long>(blockIdx.x) * kOwn + own;
  float sum = 0;
  if (i < n) {
#pragma unroll 8
    for (long long s = lane; s < splits; s += kLanes) sum += partial[s * n + i];
  }
  if constexpr (kLanes > 1) {
    __shared__ float smem_sums[kLanes][kOwn];
    smem_sums[lane][own] = sum;
    __syncthreads();
    if (lane > 0) return;
#pragma unroll
    for (int other = 1; other < kLanes; ++other) sum += smem_sums[other][own];
  }
  if (i < n) out[to.at(i)] = narrow<T>(sum);
}
