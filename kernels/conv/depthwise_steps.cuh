// What depthwise convolution by bands counts and moves: tiles of rows, the steps of a block's tiles, places of rings,
// words of shared memory.
#pragma once

#include "dnnarray/ptx/mbarrier.cuh"
#include "conv/depthwise.cuh"

namespace dnnarray {

// A tile: some rows of a range of columns of kPlanes planes of some images. Each has `parts` of them below each other,
//         the last one of the rest of
// its rows.
template <int kStrip, int kPlanes>
struct TileOfRows {
  int image, plane, p, q;

  template <typename Arguments>
  __device__ __forceinline__ TileOfRows(const Arguments& a, int index) {
    const int parts = (a.out_height - 1) / a.rows + 1, tiles_w = (a.out_width - 1) / (a.across * kStrip) + 1;
    const Quotient by_part = divide(index, parts), by_w = divide(by_part.quotient, tiles_w);
    const Quotient by_plane =
        kPlanes > 1 ? divide(by_w.quotient, (a.out_depth - 1) / kPlanes + 1) : Quotient{by_w.quotient, 0};
    image = by_plane.quotient * a.groups;
    plane = by_plane.rest * kPlanes;
    p = by_part.rest * a.rows;
    q = by_w.rest * a.across * kStrip;
  }
};

// Goes through the steps of a block's tiles, kRows rows of inputs each: those of `index`, `index + apart`, ... Without
// a branch, since it stands between products. Rows of outputs are complete kLate steps behind the rows of inputs of the
// same number, so what leaves is counted `late` steps behind what comes. The last `joint` steps of a tile are the first
// ones of the next, both have nothing but zeros there; a block's first tile goes without its own.
template <int kRows, int kLate>
struct StepsOfTiles {
  int index, step, part;
  int apart, tiles, parts, further, whole,
      rest;           // how `part` moves on; the steps of a whole part and of the last one until the next tile's
  int joint, longer;  // by how many steps the block's last tile is longer

  template <typename Arguments>
  __device__ __forceinline__ StepsOfTiles(const Arguments& a, int first, int tiles, int apart, int late)
      : index(first), step(a.joint - late), apart(apart), tiles(tiles), joint(a.joint), longer(a.joint - late) {
    parts = (a.out_height - 1) / a.rows + 1;
    part = divide(first, parts).rest, further = divide(apart, parts).rest;
    whole = (a.rows - 1) / kRows + 1 + kLate - joint;
    rest = (a.out_height - (parts - 1) * a.rows - 1) / kRows + 1 + kLate - joint;
  }
  __device__ __forceinline__ int steps() const { return part == parts - 1 ? rest : whole; }
  __device__ __forceinline__ bool more() const { return index < tiles; }
  __device__ __forceinline__ bool complete() const {  // of what leaves
    return static_cast<unsigned>(step) < static_cast<unsigned>(steps() - (kLate - joint));
  }
  __device__ __forceinline__ int row() const { return step * kRows; }  // the first one of the step, within the tile
  __device__ __forceinline__ void next() {
    const bool over = ++step == steps() + (index + apart >= tiles ? longer : 0);
    step = over ? 0 : step;
    index += over ? apart : 0;
    part += over ? further : 0;
    part -= part >= parts ? parts : 0;
  }
};

struct Turn {  // a place in a ring
  int at = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next(int count) {
    if (++at == count) {
      at = 0;
      parity ^= 1;
    }
  }
};

}  // namespace dnnarray
