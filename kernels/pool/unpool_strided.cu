// Unpooling: y = 0, but y[n, c, indices[n, c, i]] = x[n, c, i]; and its gradient dx[n, c, i] = grad[n, c, indices[n, c, i]].
//
// Stages:  0 clears one integer per element of y, 1 marks it with the last i that names it (an atomic maximum of integers, so the order
//          of the threads does not show), 2 fetches the marked element or 0; 3 is the gradient.
// Layout:  `from` is the array that threads are counted over (x for stages 1 and 3, y for the others), one element a thread, with extents
//          D H W; any dense order, given by strides. An index that is no position is left out, and its gradient is 0.
// Bound:   memory, by scattered accesses.

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr int kStage = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_unpool_strided_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Index = Config::Index;
constexpr int kClear = 0, kMark = 1, kFetch = 2, kStage = Config::kStage;

// Where the flat position `place` of an array with these extents stands in memory.
__device__ __forceinline__ long long offset(long long place, int h, int w, const Strides& s) {
  const Split by_w = split(place, w), by_h = split(by_w.quotient, h);
  return by_h.quotient * s.d + by_h.rest * s.h + by_w.rest * s.w;
}

// `x` is the incoming gradient in stage 3, `y` the result; `marks` has the memory order of the unpooled array.
extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_x, const Index* __restrict__ gmem_indices, T* __restrict__ gmem_y, int* __restrict__ gmem_marks, long long total,
    long long channels, long long x_n, long long x_c, long long x_d, long long x_h, long long x_w, long long y_n, long long y_c,
    long long y_d, long long y_h, long long y_w, long long x_hw, long long y_hw, long long x_size, long long y_size) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= total) return;
  if constexpr (kStage == kClear) {
    gmem_marks[i] = 0;
    return;
  }
  // Channels are counted innermost where they lie so, that neighbouring threads stay neighbours in memory.
  const bool last = x_c == 1 && channels > 1;
  const int size = static_cast<int>(kStage == kFetch ? y_size : x_size), count = static_cast<int>(channels);
  const Split inner = split(i, last ? count : size), outer = split(inner.quotient, last ? size : count);
  const int c = last ? inner.rest : outer.rest, place = last ? outer.rest : inner.rest;
  const Strides x{x_n, x_c, x_d, x_h, x_w}, y{y_n, y_c, y_d, y_h, y_w};
  const long long x_base = outer.quotient * x.n + c * x.c, y_base = outer.quotient * y.n + c * y.c;
  if constexpr (kStage == kFetch) {
    const long long to = y_base + offset(place, high(y_hw), low(y_hw), y);
    const int mark = gmem_marks[to];
    const T nothing{};
    gmem_y[to] = mark ? gmem_x[x_base + offset(mark - 1, high(x_hw), low(x_hw), x)] : nothing;
  } else {
    const long long from = x_base + offset(place, high(x_hw), low(x_hw), x);
    const long long named = static_cast<long long>(gmem_indices[from]);
    const bool valid = named >= 0 && named < y_size;
    const long long to = y_base + offset(valid ? named : 0, high(y_hw), low(y_hw), y);
    if constexpr (kStage == kMark) {
      if (valid) atomicMax(gmem_marks + to, place + 1);
    } else {
      const T nothing{};
      gmem_y[from] = valid ? gmem_x[to] : nothing;
    }
  }
}
