// Overlapping tiles of planes for real Fourier transforms: out[g, o, i, t, u] = x[g, o, i, (t * step + u - before) /
// dilation], 0 where that is no place of x or u is beyond `taken`.
//
// Layout:  x by its strides, which may be negative; out dense. A block owns kPieces pieces one behind the other, each
//          of kSteps * kThreads neighbours of a tile.
// Needs:   nothing.
// Bound:   memory: out written once; x comes from the caches where tiles overlap.

#include "conv/fourier.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long pieces;
  int parts;
  int outers;
  int inners;
  long long x_strides[6];
  dnnarray::TileAxes axes;
};
#define DNNARRAY_ENTRY conv_fourier_tiles_default
#endif

using namespace dnnarray;
constexpr int kSteps = 8, kPieces = 4;

// Which piece of which tile: counted on without divisions.
struct Piece {
  long long group;
  int outer, inner, part;
  Place tile;

  __device__ __forceinline__ void next(int parts, int inners, int outers, const TileAxis& d, const TileAxis& h,
                                       const TileAxis& w) {
    if (++part < parts) return;
    part = 0;
    if (!tile.next(d.tiles, h.tiles, w.tiles) || ++inner < inners) return;
    inner = 0;
    if (++outer < outers) return;
    outer = 0;
    ++group;
  }
};

// `pieces` in all, `parts` of a tile. The strides are along groups, two more axes, and space.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ x, float* __restrict__ out, const __grid_constant__ Arguments a) {
  const TileAxis d = a.axes.d, h = a.axes.h, w = a.axes.w;
  const long long pieces = a.pieces, x_g = a.x_strides[0], x_o = a.x_strides[1], x_i = a.x_strides[2];
  const long long x_d = a.x_strides[3], x_h = a.x_strides[4], x_w = a.x_strides[5];
  const int parts = a.parts, inners = a.inners, outers = a.outers;
  const int volume = d.size * h.size * w.size;
  const long long first = static_cast<long long>(blockIdx.x) * kPieces;
  const Split by_part = split(first, parts), by_tile = split(by_part.quotient, d.tiles * h.tiles * w.tiles);
  const Split by_i = split(by_tile.quotient, inners), by_o = split(by_i.quotient, outers);
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
      const int in_d = d.input(piece.tile.d, at.d), in_h = h.input(piece.tile.h, at.h),
                in_w = w.input(piece.tile.w, at.w);
      out[u] = in_d < 0 || in_h < 0 || in_w < 0 ? 0.0f : from[in_d * x_d + in_h * x_h + in_w * x_w];
      at.w += stride.w;
      if (at.w >= w.size) at.w -= w.size, ++at.h;
      at.h += stride.h;
      if (at.h >= h.size) at.h -= h.size, ++at.d;
      at.d += stride.d;
    }
    if (piece.part + 1 == parts) out += volume;
    piece.next(parts, inners, outers, d, h, w);
  }
}
