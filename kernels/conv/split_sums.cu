// out[i] = sum over s of partial[s, i], brought to another memory and type: the second stage of a weight gradient.
//
// Layout:  partial is splits x n, dense; out by strides, which may be negative. A thread owns one element.
// Needs:   nothing.
// Bound:   memory: partial read once.

#include "dnnarray/index.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_split_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ partial, T* __restrict__ out, long long n, long long splits, long long n1, long long n2,
                   long long n3, long long n4, long long t0, long long t1, long long t2, long long t3, long long t4) {
  const Strided to = {n1, n2, n3, n4, t0, t1, t2, t3, t4};
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
#pragma unroll 8
  for (long long s = 0; s < splits; ++s) sum += partial[s * n + i];
  out[to.at(i)] = narrow<T>(sum);
}
