// Weight gradients of groups of few channels: what the kernels on the tensor cores and on the CUDA cores have in
// common. A block has some slabs (grouped.cuh) and stays for many tiles, whose inputs and gradients come to shared
// memory one tile ahead.
#pragma once

#include "dnnarray/core/overlap.cuh"
#include "conv/grouped.cuh"

namespace dnnarray {

// How the channels make up slabs, and the chunks of a slab on both sides.
struct Slabs {
  int groups, c, k, together, in, out;

  __device__ __forceinline__ static Slabs of(long long groups, long long c, long long k, long long together,
                                             int chunk) {
    const auto i32 = [](long long value) { return static_cast<int>(value); };  // all of them fit
    return {i32(groups), i32(c), i32(k), i32(together), i32(together * c) / chunk, i32(together * k) / chunk};
  }
};

// Which part of the work a block has: the slabs of range b % ranges, part b / ranges % parts of their tasks, and each
// so-many-th tile.
struct BlockShare {
  int range, part, tile, tiles;

  __device__ __forceinline__ BlockShare(long long ranges, long long parts) {
    const int of_slabs = static_cast<int>(ranges), of_tasks = static_cast<int>(parts), by_range = blockIdx.x / of_slabs;
    range = blockIdx.x - by_range * of_slabs;
    tile = by_range / of_tasks;
    part = by_range - tile * of_tasks;
    tiles = gridDim.x / static_cast<int>(ranges * parts);
  }
};

// Inputs and gradients of the tiles, from the block's first slab on.
template <typename T>
struct WeightTiles {
  Tiling tiles;
  ConvAxes axes;
  BoxStream<T> x, dy;

  __device__ __forceinline__ static WeightTiles of(const T* dy, const T* x, const Slabs& s, int first, int across,
                                                   int chunk, const Tiling& tiles, const ConvAxes& axes,
                                                   const Strides& y_step, const Strides& x_step) {
    const auto i32 = [](long long value) { return static_cast<int>(value); };
    const int vectors = across * s.in, vectors_y = across * s.out, first_x = first * s.in * chunk,
              first_y = first * s.out * chunk;
    const Box box = tiles.box(axes, vectors),
              box_y{tiles.depths, tiles.rows, tiles.columns, vectors_y, (vectors_y | 1) * 16};
    const BoxSource of_x{i32(x_step.d), i32(x_step.h), i32(x_step.w),           axes.d.space,
                         axes.h.space,  axes.w.space,  s.groups * s.c - first_x};
    const BoxSource of_y{i32(y_step.d), i32(y_step.h), i32(y_step.w),           axes.d.out,
                         axes.h.out,    axes.w.out,    s.groups * s.k - first_y};
    return {tiles, axes, {x + first_x, x_step.n, of_x, box}, {dy + first_y, y_step.n, of_y, box_y}};
  }

  // Tile `index` to `smem`, inputs first.
  template <int kThreads>
  __device__ __forceinline__ void bring(unsigned smem, int index) const {
    const TilePlace tile(index, tiles);
    x.template bring<kThreads>(smem, tile.image, tile.inputs(axes));
    dy.template bring<kThreads>(smem + x.box.bytes(), tile.image, {tile.d, tile.p, tile.q, 1});
  }
};

}  // namespace dnnarray
