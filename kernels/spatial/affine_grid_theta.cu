// d[n, i, k] = the sum of the parts of affine_grid_backward, in their order.
//
// Layout:  partial (parts, N, kRank, kRank + 1); the result by strides. A thread owns an element.
// Needs:   launched early.
// Bound:   latency.

#include "dnnarray/core/overlap.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kRank = 2;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long batch;
  long long parts;
  long long strides[3];
};
#define DNNARRAY_ENTRY spatial_affine_grid_theta_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const A* __restrict__ partial, T* __restrict__ dtheta, const __grid_constant__ Arguments a) {
  const long long size = a.batch * Config::kRank * (Config::kRank + 1);
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= size) return;
  partial = after_previous_kernel(partial);
  A sum = A(0);
#pragma unroll 16
  for (long long part = 0; part < a.parts; ++part) sum += partial[part * size + own];
  long long n = own;
  const long long k = split(n, Config::kRank + 1), i = split(n, Config::kRank);
  dtheta[n * a.strides[0] + i * a.strides[1] + k * a.strides[2]] = narrow<T>(sum);
}
