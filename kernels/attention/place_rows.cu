// Rows moved from one type to another: y[r, c] = x[r, c], the same row for all (step 0), or a constant where x is null;
// zeros in the rows past the end of a sequence.
//
// Layout:  y rows x width, dense; the rows of x are `step` elements apart. A thread owns one element.
// Bound:   memory: x read once, y written once.

#include "attention/rule.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Source = float;
  using Result = float;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long size;
  long long width;
  long long step;
  double constant;
  const void* lengths;
  long long lengths_kind;
  long long sequence;
};
#define DNNARRAY_ENTRY place_rows_default
#endif

using namespace dnnarray;
using T = Config::Source;
using R = Config::Result;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, R* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long size = a.size, width = a.width, step = a.step, lengths_kind = a.lengths_kind, sequence = a.sequence;
  const double constant = a.constant;
  const void* lengths = a.lengths;
  const long long at = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (at >= size) return;
  const Divided place = divide_index(at, width);
  arithmetic_t<R> value =
      x ? arithmetic_t<R>(widen(x[place.quotient * step + place.remainder])) : arithmetic_t<R>(constant);
  if (lengths) {
    const Divided row = divide_index(place.quotient, sequence);
    if (row.remainder >= integer_at(lengths, lengths_kind, row.quotient)) value = 0;
  }
  y[at] = narrow<R>(value);
}
