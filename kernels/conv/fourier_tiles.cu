// Overlapping tiles of planes for real Fourier transforms: out[g, o, i, t, u] = x[g, o, i, (t * step + u - before) / dilation], 0 where that is
// no place of x or u is beyond `taken`.
//
// Layout:  x by its strides, which may be negative; out dense. A block owns kSteps * kThreads neighbours of a tile.
// Needs:   nothing.
// Bound:   memory: out written once; x comes from the caches where tiles overlap.

#include "dnnarray/conv.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_fourier_tiles_default
#endif

using namespace dnnarray;
constexpr int kSteps = 8;

// One axis. The launch arguments are pairs: (tiles, places of a tile), (places taken, step), (extent of x, dilation), and `before`.
struct TileAxis {
  int tiles, size, taken, step, extent, dilation, before;

  __device__ __forceinline__ TileAxis(long long tile, long long walk, long long source, long long before)
      : tiles(high(tile)), size(low(tile)), taken(high(walk)), step(low(walk)), extent(high(source)), dilation(low(source)),
        before(static_cast<int>(before)) {}

  // The place of x, or -1.
  __device__ __forceinline__ int input(int tile, int u) const {
    const int at = tile * step + u - before;
    if (u >= taken || at < 0) return -1;
    const int place = quotient(at, dilation);
    return place * dilation == at && place < extent ? place : -1;
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ x, float* __restrict__ out, long long pieces, long long outer, long long inner, long long x_g,
                   long long x_o, long long x_i, long long x_d, long long x_h, long long x_w, long long d0, long long d1, long long d2, long long d3, long long h0,
                   long long h1, long long h2, long long h3, long long w0, long long w1, long long w2, long long w3) {
  const TileAxis d(d0, d1, d2, d3), h(h0, h1, h2, h3), w(w0, w1, w2, w3);
  const int volume = d.size * h.size * w.size;
  const Split by_piece = split(blockIdx.x, static_cast<int>(pieces)), by_tile = split(by_piece.quotient, d.tiles * h.tiles * w.tiles);
  const Split by_i = split(by_tile.quotient, static_cast<int>(inner)), by_o = split(by_i.quotient, static_cast<int>(outer));
  const Place tile = Place::of(by_tile.rest, h.tiles, w.tiles);
  x += by_o.quotient * x_g + by_o.rest * x_o + by_i.rest * x_i;
  out += by_piece.quotient * volume;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int u = (by_piece.rest * kSteps + step) * Config::kThreads + threadIdx.x;
    if (u >= volume) return;
    const Place at = Place::of(u, h.size, w.size);
    const int in_d = d.input(tile.d, at.d), in_h = h.input(tile.h, at.h), in_w = w.input(tile.w, at.w);
    out[u] = in_d < 0 || in_h < 0 || in_w < 0 ? 0.0f : x[in_d * x_d + in_h * x_h + in_w * x_w];
  }
}
