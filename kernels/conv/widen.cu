// Rows of another width: out[p, j] = in[p, j] where the input has such a column, 0 behind its end; columns that out
// lacks are left out.
//
// Layout:  both dense. A thread owns kVector neighbours of out, stored at once.
// Needs:   out aligned to kVector elements.
// Bound:   memory: both arrays once.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kVector = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long total;
  long long width_in;
  long long width_out;
};
#define DNNARRAY_ENTRY conv_widen_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kVector = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ source, T* __restrict__ out, const __grid_constant__ Arguments a) {
  const long long total = a.total, width_in = a.width_in, width_out = a.width_out;
  const long long first = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (first >= total) return;
  const Divided place = divide_index(first, width_out);
  const int from = static_cast<int>(width_in), to = static_cast<int>(width_out);
  const T* row = source + place.quotient * width_in;
  int column = static_cast<int>(place.remainder);
  Vec<T, kVector> found;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    found.at[i] = column < from && first + i < total ? row[column] : narrow<T>(0.0f);
    if (++column == to) column = 0, row += width_in;
  }
  if (first + kVector <= total) {
    store(out + first, found);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (first + i < total) out[first + i] = found.at[i];
  }
}
