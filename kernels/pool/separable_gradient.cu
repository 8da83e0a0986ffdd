// Gradient of mean pooling in channels-first memory, windows of any kind over two axes: every element gets a share of
// what its windows get.
//
// Layout:  a block makes a band (band.cuh). It keeps in shared memory what each element of a window gets, for all
//          windows that look at the band; then the sums over the windows of a row, for each column; then it adds these
//          up down the columns. kRow threads take a row.
// Needs:   pointers and W aligned to kWide elements; dilation 1; dynamic shared memory for a number a
//          window and a column of each row of windows, and two a row of the band.
// Bound:   memory: dx written once, grad read about once.

#include "pool/band.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAdaptive = true;
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
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
};
#define DNNARRAY_ENTRY pool_separable_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr int kWide = Config::kWide, kRow = Config::kRow, kThreads = Config::kThreads;

// `room` is how many rows of windows look at a band at the most; divided is by the rows of a band.
extern "C" __global__ void __launch_bounds__(kThreads, sizeof(T) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, T* __restrict__ dx, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) double smem[];
  const WindowAxis axis_h = a.h, axis_w = a.w;
  const Band<Config::kAdaptive> band(a.outer, a.planes, a.rows, a.bands, axis_h);
  const int width = axis_w.extent, outputs = axis_w.outputs, own = threadIdx.x / kRow, lane = threadIdx.x % kRow;
  A* const columns = reinterpret_cast<A*>(smem);  // by plane, row of windows, column
  A* const shares = columns + a.planes * a.room * width;
  Cover* const covers = reinterpret_cast<Cover*>(shares + a.planes * a.room * outputs);  // of the rows of the band
  for (int row = threadIdx.x; row < band.rows; row += kThreads) covers[row] = axis_h.cover(band.h + row);

  for (int row = own; row < band.planes * band.windows; row += kThreads / kRow) {
    const int plane = band.planes == 1 ? 0 : row / band.windows, p = band.p + row - plane * band.windows;
    const A down = A(axis_h.count(axis_h.taps(p), a.padded));
    const T* own_grad = grad + ((band.plane + plane) * axis_h.outputs + p) * outputs;
    for (int q = lane; q < outputs; q += kRow) {
      shares[row * outputs + q] = widen(own_grad[q]) * inverse(down * A(axis_w.count(axis_w.taps(q), a.padded)));
    }
  }
  __syncthreads();
  for (int w = lane; w < width; w += kRow) {
    const Cover over = axis_w.cover(w);
    for (int row = own; row < band.planes * band.windows; row += kThreads / kRow) {
      A sum = 0;
      for (int q = over.first; q <= over.last; ++q) sum += shares[row * outputs + q];
      columns[row * width + w] = sum;
    }
  }
  __syncthreads();
  for (int row = own; row < band.planes * band.rows; row += kThreads / kRow) {
    const int plane = band.planes == 1 ? 0 : row / band.rows, local = row - plane * band.rows, h = band.h + local;
    const Cover over = covers[local];
    const A* from = columns + (plane * band.windows - band.p) * width;
    T* const own_dx = dx + ((band.plane + plane) * axis_h.extent + h) * width;
    for (int w = lane * kWide; w < width; w += kRow * kWide) {
      A sum[kWide] = {};
      for (int p = over.first; p <= over.last; ++p) {
        const Vec<A, kWide> part = load_wide<A, kWide>(from + p * width + w);
#pragma unroll
        for (int j = 0; j < kWide; ++j) sum[j] += part.at[j];
      }
      store(own_dx + w, narrow_all<T, kWide>(sum));
    }
  }
}
