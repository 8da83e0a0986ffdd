// Axes of planes that are cut into overlapping tiles for Fourier transforms, as launches describe them.
#pragma once

#include "conv/geometry.cuh"

namespace dnnarray {

// Tiles and the places of one; the places that are taken of the source, from tile to tile `step` apart; the extent of
// the source, whose elements stand `dilation` apart behind `before` places.
struct TileAxis {
  int tiles, size, taken, step, extent, dilation, before;

  // The place of the source, or -1.
  __device__ __forceinline__ int input(int tile, int u) const {
    const int at = tile * step + u - before;
    if (u >= taken || at < 0) return -1;
    const int place = quotient(at, dilation);
    return place * dilation == at && place < extent ? place : -1;
  }
};
struct TileAxes {
  TileAxis d, h, w;
};

// Tiles and the places of one, the extent of the result, places from tile to tile and from element to element of the
// result.
struct ResultAxis {
  int tiles, size, extent, step, spread;

  // The tile and the place in it.
  __device__ __forceinline__ Split place(int p) const {
    return tiles == 1 ? Split{0, p * spread} : split(static_cast<long long>(p) * spread, step);
  }
};
struct ResultAxes {
  ResultAxis d, h, w;
};

}  // namespace dnnarray
