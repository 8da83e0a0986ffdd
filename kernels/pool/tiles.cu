// Gradient of pooling with small square windows in two dimensions: dx = the sum over the windows that cover an element, as in gather.cu.
//
// Layout:  as in gather.cu, but a thread owns a tile of kStride x kStride elements, which starts where a window starts: the same
//          ((kWindow - 1) / kStride + 1)^2 windows cover all of it, and which tap of which window stands where is known at compile time.
// Needs:   as gather.cu; both windows kWindow, both strides kStride, dilation 1, nothing along the first of the three axes.
// Bound:   memory: grad and what was saved read about once, dx written once.

#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Saved = unsigned char;
  static constexpr int kRule = 0;
  static constexpr int kWindow = 3;
  static constexpr int kStride = 2;
  static constexpr int kVector = 4;
  static constexpr int kColumns = 32;
  static constexpr int kRows = 4;
};
#define DNNARRAY_ENTRY pool_tiles_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
constexpr int kVector = Config::kVector, kWindow = Config::kWindow, kStride = Config::kStride, kCover = (kWindow - 1) / kStride + 1;
constexpr int kTap = 0, kPlace = 1, kMean = 2, kRule = Config::kRule;  // as in gather.cu
using V = Vec<T, kVector>;
using WindowAxis = Axis<false>;

struct Entry {
  V grad;
  Vec<Saved, kVector> saved;
  A share;
  bool there;
};

// What window `e` gives to its tap number `tap`, which stands at the flat position `place`.
__device__ __forceinline__ void add(A (&sum)[kVector], const Entry& e, int tap, int place) {
  if (!e.there) return;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const A g = widen(e.grad.at[j]);
    if constexpr (kRule == kTap) sum[j] += static_cast<int>(e.saved.at[j]) == tap ? g : A(0);
    if constexpr (kRule == kPlace) sum[j] += static_cast<long long>(e.saved.at[j]) == place ? g : A(0);
    if constexpr (kRule == kMean) sum[j] += g * e.share;
  }
}

// Arguments as in gather.cu; `rows` counts rows of tiles.
extern "C" __global__ void __launch_bounds__(Config::kColumns * Config::kRows) DNNARRAY_ENTRY(
    const T* __restrict__ gmem_grad, const T* __restrict__ gmem_x, const Saved* __restrict__ gmem_saved, T* __restrict__ gmem_dx,
    long long rows, long long planes_inner, long long x_n, long long x_c, long long x_d, long long x_h, long long x_w, long long y_n,
    long long y_c, long long y_d, long long y_h, long long y_w, long long d0, long long d1, long long d2, long long d3, long long h0,
    long long h1, long long h2, long long h3, long long w0, long long w1, long long w2, long long w3, long long padded, double p64) {
  const WindowAxis axis_h(h0, h1, h2, h3), axis_w(w0, w1, w2, w3);
  const int planes = high(planes_inner), inner = low(planes_inner);
  const int tiles_h = (axis_h.extent + axis_h.before + kStride - 1) / kStride, tiles_w = (axis_w.extent + axis_w.before + kStride - 1) / kStride;
  const Split column = split(static_cast<long long>(blockIdx.x) * Config::kColumns + threadIdx.x % Config::kColumns, inner);
  if (column.quotient >= tiles_w) return;
  const int tile_w = static_cast<int>(column.quotient), first_w = tile_w * kStride - axis_w.before;

  for (long long row = static_cast<long long>(blockIdx.y) * Config::kRows + threadIdx.x / Config::kColumns; row < rows;
       row += static_cast<long long>(gridDim.y) * Config::kRows) {
    const Split by_h = split(row, tiles_h), by_c = split(by_h.quotient, planes);
    const int tile_h = by_h.rest, first_h = tile_h * kStride - axis_h.before;
    const long long from = by_c.quotient * y_n + by_c.rest * y_c + tile_h * y_h + tile_w * y_w + column.rest * kVector;

    // Window [a][b] is the a-th before the one that starts with the tile, and the b-th beside it.
    Entry entries[kCover][kCover];
#pragma unroll
    for (int a = 0; a < kCover; ++a)
#pragma unroll
      for (int b = 0; b < kCover; ++b) {
        Entry& e = entries[a][b];
        const int p = tile_h - a, q = tile_w - b;
        e.there = p >= 0 && p < axis_h.outputs && q >= 0 && q < axis_w.outputs;
        if (!e.there) continue;
        e.grad = load<T, kVector>(gmem_grad + from - a * y_h - b * y_w);
        if constexpr (kRule != kMean) e.saved = load_wide<Saved, kVector>(gmem_saved + from - a * y_h - b * y_w);
        if constexpr (kRule == kMean) {
          e.share = A(1) / (A(axis_h.count(axis_h.taps(p), padded)) * A(axis_w.count(axis_w.taps(q), padded)));
        }
      }

    T* dx = gmem_dx + by_c.quotient * x_n + by_c.rest * x_c + first_h * x_h + first_w * x_w + column.rest * kVector;
#pragma unroll
    for (int i = 0; i < kStride; ++i)
#pragma unroll
      for (int j = 0; j < kStride; ++j) {
        const int h = first_h + i, w = first_w + j;
        if (h < 0 || h >= axis_h.extent || w < 0 || w >= axis_w.extent) continue;
        A sum[kVector] = {};
#pragma unroll
        for (int a = kCover - 1; a >= 0; --a)
#pragma unroll
          for (int b = kCover - 1; b >= 0; --b) {
            const int r = i + a * kStride, s = j + b * kStride;
            if (r < kWindow && s < kWindow) add(sum, entries[a][b], r * kWindow + s, h * axis_w.extent + w);
          }
        V reg_dx;
#pragma unroll
        for (int k = 0; k < kVector; ++k) reg_dx.at[k] = narrow<T>(sum[k]);
        store(dx + i * x_h + j * x_w, reg_dx);
      }
  }
}
