// Unpooling: y = 0, but y[n, c, indices[n, c, i]] = x[n, c, i]; and its gradient dx[n, c, i] = grad[n, c, indices[n, c,
//            i]].
//
// Stages:  0 clears one integer per element of y, 1 marks it with the last i that names it (an atomic maximum of
//          integers, so the order of the threads does not show), 2 fetches the marked element or 0; 3 is the gradient.
// Layout:  `from` is the array that threads are counted over (x for stages 1 and 3, y for the others), one element a
//          thread, with extents D H W; any dense order, given by strides. An index that is no position is left out, and
//          its gradient is 0.
// Bound:   memory, by scattered accesses.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Index = long long;
  static constexpr int kStage = 2;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  long long channels;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  int x_height;
  int x_width;
  int y_height;
  int y_width;
  long long x_size;
  long long y_size;
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
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Index* __restrict__ indices, T* __restrict__ y,
                   int* __restrict__ marks, const __grid_constant__ Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= a.total) return;
  if constexpr (kStage == kClear) {
    marks[i] = 0;
    return;
  }
  // Channels are counted innermost where they lie so, that neighbouring threads stay neighbours in memory.
  const bool last = a.x_strides.c == 1 && a.channels > 1;
  const int size = static_cast<int>(kStage == kFetch ? a.y_size : a.x_size), count = static_cast<int>(a.channels);
  const Split inner = split(i, last ? count : size), outer = split(inner.quotient, last ? size : count);
  const int c = last ? inner.rest : outer.rest, place = last ? outer.rest : inner.rest;
  const Strides sx = a.x_strides, sy = a.y_strides;
  const long long x_base = outer.quotient * sx.n + c * sx.c, y_base = outer.quotient * sy.n + c * sy.c;
  if constexpr (kStage == kFetch) {
    const long long to = y_base + offset(place, a.y_height, a.y_width, sy);
    const int mark = marks[to];
    const T nothing{};
    y[to] = mark ? x[x_base + offset(mark - 1, a.x_height, a.x_width, sx)] : nothing;
  } else {
    const long long from = x_base + offset(place, a.x_height, a.x_width, sx);
    const long long named = static_cast<long long>(indices[from]);
    const bool valid = named >= 0 && named < a.y_size;
    const long long to = y_base + offset(valid ? named : 0, a.y_height, a.y_width, sy);
    if constexpr (kStage == kMark) {
      if (valid) atomicMax(marks + to, place + 1);
    } else {
      const T nothing{};
      y[from] = valid ? x[to] : nothing;
    }
  }
}
