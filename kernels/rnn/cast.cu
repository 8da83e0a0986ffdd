// y[i, j, k] = x[i, j, k] in another type and other strides; 0 where there is no x, or where i is not below lengths[j].
//
// Layout:  axes (n0, n1, n2), a thread owns one element, k fastest.
// Bound:   memory.

#include "dnnarray/core/dtype.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float16_t;
  using Target = float;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY rnn_cast_default
#endif

using namespace dnnarray;
using S = Config::Source;
using T = Config::Target;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const S* __restrict__ x, T* __restrict__ y, const int* __restrict__ lengths, long long n, long long n1, long long n2,
                   long long x0, long long x1, long long x2, long long y0, long long y1, long long y2) {
  const long long e = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (e >= n) return;
  const long long line = e / n2, k = e - line * n2, i = line / n1, j = line - i * n1;
  const bool there = x != nullptr && (lengths == nullptr || i < lengths[j]);
  y[i * y0 + j * y1 + k * y2] = there ? narrow<T>(arithmetic_t<T>(widen(x[i * x0 + j * x1 + k * x2]))) : narrow<T>(0);
}
