// Overlapping tiles of planes for real Fourier transforms: out[g, o, i, t, u] = x[g, o, i, (t * step + u - before) / dilation], 0 where that is
// no place of x or u is beyond `taken`.
//
// Layout:  x by its strides, which may be negative; out dense. A block owns kPieces pieces one behind the other, each of kSteps * kThreads
//          neighbours of a tile.
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
constexpr int kSteps = 8, kPieces = 4;

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

// Which piece of which tile: counted on without divisions.
struct Piece {
  long long group;
  int outer, inner, part;
  Place tile;

  __device__ __forceinline__ void next(int parts, int inners, int outers, const TileAxis& d, const TileAxis& h, const TileAxis& w) {
    if (++part < parts) return;
    part = 0;
    if (!tile.next(d.tiles, h.tiles, w.tiles) || ++inner < inners) return;
    inner = 0;
    if (++outer < outers) return;
    outer = 0;
    ++group;
  }
};

// `pieces` in all, `parts` of a tile.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ x, float* __restrict__ out, long long pieces, long long parts, long long outers,
                   long long inners, long long x_g, long long x_o, long long x_i, long long x_d, long long x_h, long long x_w, long long d0,
                   long long d1, long long d2, long long d3, long long h0, long long h1, long long h2, long long h3, long long w0,
                   long long w1, long long w2, long long w3) {
  const TileAxis d(d0, d1, d2, d3), h(h0, h1, h2, h3), w(w0, w1, w2, w3);
  const int volume = d.size * h.size * w.size;
  const long long first = static_cast<long long>(blockIdx.x) * kPieces;
  const Split by_part = split(first, static_cast<int>(parts)), by_tile = split(by_part.quotient, d.tiles * h.tiles * w.tiles);
  const Split by_i = split(by_tile.quotient, static_cast<int>(inners)), by_o = split(by_i.quotient, static_cast<int>(outers));
  Piece piece = {by_o.quotient, by_o.rest, by_i.rest, by_part.rest, Place::of(by_tile.rest, h.tiles, w.tiles)};
  const Place stride = Place::of(Config::kThreads, h.size, w.size);
  out += by_part.quotient * volume;
  for (int k = 0; k < kPieces && first + k < pieces; ++k) {
    const float* from = x + piece.group * x_g + piece.outer * x_o + piece.inner * x_i;
    int u = piece.part * (kSteps * Config::kThreads) + threadIdx.x;
    Place at = Place::of(u, h.size, w.size);
#pragma unroll
    for (int step = 0; step < kSteps; ++step, u += Config::kThreads) {
      if (u >= volume) break;
      const int in_d = d.input(piece.tile.d, at.d), in_h = h.input(piece.tile.h, at.h), in_w = w.input(piece.tile.w, at.w);
      out[u] = in_d < 0 || in_h < 0 || in_w < 0 ? 0.0f : from[in_d * x_d + in_h * x_h + in_w * x_w];
      at.w += stride.w;
      if (at.w >= w.size) at.w -= w.size, ++at.h;
      at.h += stride.h;
      if (at.h >= h.size) at.h -= h.size, ++at.d;
      at.d += stride.d;
    }
    if (piece.part + 1 == parts) out += volume;
    piece.next(static_cast<int>(parts), static_cast<int>(inners), static_cast<int>(outers), d, h, w);
  }
}
