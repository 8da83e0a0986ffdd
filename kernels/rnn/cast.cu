// y[i, j, k] = x[i, j, k] in another type and other strides; 0 where there is no x, or where i is not below lengths[j].
//
// Layout:  axes (n0, n1, n2), a thread owns one element, k fastest.
// Bound:   memory.

#include "dnnarray/core/dtype.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = dnnarray::float16_t;
  using Target = float;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  long long extents[2];
  long long read[3];
  long long written[3];
};
#define DNNARRAY_ENTRY rnn_cast_default
#endif

using namespace dnnarray;
using S = Config::Source;
using T = Config::Target;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const S* __restrict__ x, T* __restrict__ y, const int* __restrict__ lengths,
                   const __grid_constant__ Arguments a) {
  const long long e = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (e >= a.size) return;
  const long long line = e / a.extents[1], k = e - line * a.extents[1], i = line / a.extents[0],
                  j = line - i * a.extents[0];
  const bool there = x != nullptr && (lengths == nullptr || i < lengths[j]);
  const long long from = i * a.read[0] + j * a.read[1] + k * a.read[2];
  y[i * a.written[0] + j * a.written[1] + k * a.written[2]] =
      there ? narrow<T>(arithmetic_t<T>(widen(x[from]))) : narrow<T>(0);
}
