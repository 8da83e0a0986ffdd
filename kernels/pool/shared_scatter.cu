// Gradient of maximum pooling in channels-first memory, windows of any kind over two axes: what a window gets goes to
// the place of its maximum.
//
// Layout:  a block sums up a band (band.cuh) in shared memory. First it reads its windows, kRow threads a row of them.
//          Then these are taken in kinds, every h_kinds-th row and every w_kinds-th column, of which no two look at the
//          same element; between kinds the block waits, so that the order of a sum is fixed.
// Needs:   pointers, and the elements of a band, aligned to kWide elements; dynamic shared memory for a sum an element
//          of a band, and a gradient and a place a window.
// Bound:   memory: dx written once, grad and what was saved read once (by parts, which meet in the caches).

#include "pool/band.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Saved = unsigned char;
  static constexpr bool kPlace = false;
  static constexpr bool kAdaptive = false;
  static constexpr int kWide = 4;
  static constexpr int kRow = 32;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long outer;
  long long planes;
  long long rows;
  long long bands;
  long long room;
  dnnarray::Divider taps;
  int h_kinds;
  int w_kinds;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
};
#define DNNARRAY_ENTRY pool_shared_scatter_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr int kWide = Config::kWide, kRow = Config::kRow, kThreads = Config::kThreads;

struct Windows {
  const T* grad;
  const Saved* saved;
  WindowAxis h, w;
  Divider by_taps;  // of a row: of a window, or of the plane where places are saved

  // The place of a window's maximum as row and column, a row of -1 if it has none.
  __device__ __forceinline__ int place(long long at, const Taps& in_h, const Taps& in_w, int& column) const {
    const long long code = static_cast<long long>(saved[at]);
    if (code < 0 || code >> 31 != 0) return -1;
    const Split place = by_taps(code);
    const int start = Config::kPlace ? 0 : in_w.start, step = Config::kPlace ? 1 : w.dilation;
    column = start + place.rest * step;
    return Config::kPlace ? static_cast<int>(place.quotient)
                          : in_h.start + static_cast<int>(place.quotient) * h.dilation;
  }
};

// Whether a window has a tap there.
__device__ __forceinline__ bool has(const WindowAxis& axis, const Taps& taps, int window, int place) {
  const int tap = axis.tap_at(place, window);
  return tap >= taps.first && tap < taps.last;
}

constexpr int kBlocks =
    sizeof(T) == 8 || Config::kAdaptive
        ? 2
        : 5;  // five leave the registers that are needed, of which the compiler takes a quarter more

// `taps` is what codes are divided by; `h_kinds` and `w_kinds` are how many windows cover an element at the most;
// `room` how many rows of windows look at a band at the most.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Saved* __restrict__ saved, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) double smem[];
  const WindowAxis axis_h = a.h, axis_w = a.w;
  const Band<Config::kAdaptive> band(a.outer, a.planes, a.rows, a.bands, axis_h);
  const Windows windows{grad, saved, axis_h, axis_w, a.taps};
  const int width = axis_w.extent, outputs = axis_w.outputs, size = band.rows * width, total = band.planes * size;
  const int lines = band.planes * band.windows, own = threadIdx.x / kRow, lane = threadIdx.x % kRow;
  A* const sums = reinterpret_cast<A*>(smem);
  A* const grads = sums + (a.planes * a.rows * width + 3) / 4 * 4;
  int* const places = reinterpret_cast<int*>(grads + a.planes * a.room * outputs);

  for (int i = threadIdx.x * 4; i < total; i += kThreads * 4) store_wide(sums + i, Vec<A, 4>{});
  for (int line = own; line < lines; line += kThreads / kRow) {
    const int plane = band.planes == 1 ? 0 : line / band.windows, p = band.p + line - plane * band.windows;
    const Taps in_h = axis_h.taps(p);
    const long long from = ((band.plane + plane) * axis_h.outputs + p) * outputs;
    for (int q = lane; q < outputs; q += kRow) {
      const Taps in_w = axis_w.taps(q);
      int column = 0;
      grads[line * outputs + q] = widen(grad[from + q]);
      const int h = windows.place(from + q, in_h, in_w, column), local = h - band.h;
      const bool here =
          h >= 0 && local >= 0 && local < band.rows && has(axis_h, in_h, p, h) && has(axis_w, in_w, q, column);
      places[line * outputs + q] = here ? plane * size + local * width + column : -1;
    }
  }

  const int down = a.h_kinds, along = a.w_kinds;
  for (int kind = 0; kind < down * along; ++kind) {
    __syncthreads();
    const int first_p = kind / along, first_q = kind % along, steps = (band.windows - first_p + down - 1) / down;
    for (int row = own; row < band.planes * steps; row += kThreads / kRow) {
      const int plane = band.planes == 1 ? 0 : row / steps,
                line = plane * band.windows + first_p + (row - plane * steps) * down;
      for (int q = first_q + lane * along; q < outputs; q += kRow * along) {
        const int to = places[line * outputs + q];
        if (to >= 0) sums[to] += grads[line * outputs + q];
      }
    }
  }
  __syncthreads();

  dx += (band.plane * axis_h.extent + band.h) * width;
  for (int i = threadIdx.x * kWide; i < total; i += kThreads * kWide) {
    const Vec<A, kWide> sum = load_wide<A, kWide>(sums + i);
    store(dx + i, narrow_all<T, kWide>(sum.at));
  }
}
