// Pooling in channels-first memory, windows of any kind over two axes: the maximum (with its place) or mean of every
// window.
//
// Layout:  first down, then along. A block takes `rows` rows of windows, which may belong to several planes. A thread
//          reduces a vector of kWide columns over the rows of x that a row of windows covers, and leaves it in shared
//          memory. Then kRow threads take a row of windows, of each of which kLanes share the columns and meet by
//          shuffles, in a fixed order.
// Needs:   pointers and W aligned to kWide elements; dynamic shared memory for `rows` x W results, and as many places.
// Bound:   memory: x read about once (rows that windows share meet in the caches).

#include "pool/down.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kReduction = 3;
  static constexpr bool kMagnitude = false;
  static constexpr bool kAdaptive = false;
  static constexpr int kWide = 4;
  static constexpr int kFlight = 8;
  static constexpr int kLanes = 8;
  static constexpr int kRow = 32;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long total;
  long long rows;
  dnnarray::Divider vectors;
  dnnarray::Divider heights;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
};
#define DNNARRAY_ENTRY pool_separable_default
#endif

using namespace dnnarray;
using D = Down<Config>;
using T = D::T;
using A = D::A;
using P = D::P;
using R = Config::Result;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr int kWide = Config::kWide, kLanes = Config::kLanes, kRow = Config::kRow, kThreads = Config::kThreads;
constexpr int kIndices = 1, kTap = 2, kMean = 3, kReduction = Config::kReduction;  // as in direct.cu
constexpr bool kPlaces = D::kPlaces, kSum = D::kSum;

// Blocks of a multiprocessor that registers are kept for; a third would cost spills in float64 from sm_100 on.
constexpr int kBlocks = kPlaces || (__CUDA_ARCH__ >= 1000 && sizeof(T) == 8 && Config::kFlight > 8) ? 2 : 3;

// `total` counts rows of windows; `vectors` are those of a row of x, `heights` the outputs along H.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, R* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) double smem[];
  const WindowAxis axis_h = a.h, axis_w = a.w;
  const Divider by_vector = a.vectors, by_plane = a.heights;
  const long long rows = a.rows, total = a.total;
  const int width = axis_w.extent;
  A* const smem_values = reinterpret_cast<A*>(smem);
  int* const smem_rows = reinterpret_cast<int*>(smem_values + rows * width);
  const long long first = blockIdx.x * rows;
  const int count = static_cast<int>(total - first < rows ? total - first : rows);

  for (int t = threadIdx.x; t < count * by_vector.divisor; t += kThreads) {
    const Split row = by_vector(t), place = by_plane(first + row.quotient);
    const Taps h = axis_h.taps(place.rest);
    const T* from = x + (place.quotient * axis_h.extent + h.start) * width + row.rest * kWide;
    P own[kWide];
    D::reduce(own, from, h, static_cast<long long>(axis_h.dilation) * width);
    const int to = static_cast<int>(row.quotient) * width + row.rest * kWide;
    Vec<A, kWide> values;
    Vec<int, kWide> found;
#pragma unroll
    for (int j = 0; j < kWide; ++j) values.at[j] = own[j].value, found.at[j] = own[j].place;
    store_wide(smem_values + to, values);
    if constexpr (kPlaces) store_wide(smem_rows + to, found);
  }
  __syncthreads();

  // Those without a row or a result go along, for the shuffles.
  for (int begin = 0; begin < count; begin += kThreads / kRow) {
    const int own_row = begin + threadIdx.x / kRow, row = own_row < count ? own_row : 0;
    const Taps h = axis_h.taps(by_plane(first + row).rest);
    const long long results = (first + row) * axis_w.outputs;
    for (int q0 = 0; q0 < axis_w.outputs; q0 += kRow / kLanes) {
      const int own = q0 + threadIdx.x % kRow / kLanes, lane = threadIdx.x % kLanes, q = own < axis_w.outputs ? own : 0;
      const Taps w = axis_w.taps(q);
      const int from = row * width + w.start;
      P found = D::nothing();
      // Alone with a window, threads begin at different columns: those of a warp would meet in few banks.
      const int taps = w.last - w.first, turn = kLanes == 1 ? min(q / 4 % 8, taps) : 0;
      for (int i = lane; i < taps; i += kLanes) {
        const int turned = i + turn, s = w.first + (turned < taps ? turned : turned - taps);
        const int at = from + s * axis_w.dilation;
        found = combined<kSum, kPlaces>(found, P{smem_values[at], kPlaces ? smem_rows[at] * axis_w.window + s : 0});
      }
      found = combine_lanes<kLanes, kSum, kPlaces>(found);
      if (own_row >= count || own >= axis_w.outputs || lane != 0) continue;
      if constexpr (kReduction == kMean)
        found.value *= inverse(A(axis_h.count(h, a.padded)) * A(axis_w.count(w, a.padded)));
      const bool empty = h.first == h.last || w.first == w.last;
      y[results + q] = kept<kReduction == kTap, R>(found.value, empty ? -1 : found.place);
      if constexpr (kReduction == kIndices) {
        const int r = found.place / axis_w.window, s = found.place - r * axis_w.window;
        const long long at =
            static_cast<long long>(h.start + r * axis_h.dilation) * width + w.start + s * axis_w.dilation;
        indices[results + q] = empty ? -1 : at;
      }
    }
  }
}
