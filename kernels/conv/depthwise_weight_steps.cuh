// What the weight gradients of depthwise convolution that walk down their images by TMA share: the steps of a block's
// rows of x, places of rows in shared memory, and the thread that asks for them.
#pragma once

#include "conv/depthwise.cuh"
#include "conv/depthwise_steps.cuh"
#include "dnnarray/ptx/tma.cuh"

namespace dnnarray {

// What a launch is told: `parts` blocks share the tiles of the same channels. Tiles are `wide` columns of dy of
// `groups` images (and some planes of dy), `columns` beside and `depths` behind each other in an image, each of `steps`
// steps over the rows of x that some window sees, from `first` on; pitches are pixels of a row in shared memory.
struct TilesOfRows {
  int channels, flip, parts, tiles;
  int wide, groups, stages, pitch_x, pitch_dy;
  int first, steps, columns, depths;
  int out_height, before_d, before_h, before_w;

  // The first step of a part.
  __device__ __forceinline__ int begin_of(int part) const {
    return static_cast<int>(static_cast<long long>(tiles) * steps * part / parts);
  }
};

// Goes through a block's steps of kRows rows of x, from the `at`th of all tiles' to before the `end`th, and in each
// tile first through the rows of dy that its first row meets besides its own.
template <int kSide, int kPlanes, int kRows>
struct StepsOfRows {
  int at, end;
  int image, d, q;  // where the tile begins
  int row, y;       // the first row of x in this tile, and the first row of dy of this step

  __device__ __forceinline__ StepsOfRows(const TilesOfRows& a, int begin, int end) : at(begin), end(end) { enter(a); }
  __device__ __forceinline__ bool more() const { return at < end; }
  __device__ __forceinline__ bool brings_x(const TilesOfRows& a) const { return y - a.before_h >= row; }
  // Also one step of zeros, whose neighbours are looked at.
  __device__ __forceinline__ bool brings_dy(const TilesOfRows& a) const { return y < a.out_height + kRows - 1; }
  // Whether the step is of the same tile.
  __device__ __forceinline__ bool next(const TilesOfRows& a) {
    const bool passed = brings_x(a),
               over = passed && (y - a.before_h == a.first + (a.steps - 1) * kRows || at + 1 == end);
    y += kRows;
    at += passed;
    if (over) enter(a);
    return !over;
  }

 private:
  __device__ __forceinline__ void enter(const TilesOfRows& a) {
    const Quotient by_tile = divide(at, a.steps), by_column = divide(by_tile.quotient, a.columns),
                   by_depth = divide(by_column.quotient, a.depths);
    image = by_depth.quotient * a.groups, d = by_depth.rest * kPlanes, q = by_column.rest * a.wide;
    row = a.first + by_tile.rest * kRows;
    y = row + a.before_h - (kSide - 1 + kRows - 1) / kRows * kRows;
    y += max(0, -y) / kRows * kRows;  // without those above the image
  }
};

// Places in shared memory: rows of dy, of x, barriers of steps that are there and that all warps have done with.
struct PlacesOfRows {
  static constexpr int kMostStages = 16;
  unsigned dy, x, full, done;
  int dy_bytes, x_bytes;

  __device__ __forceinline__ PlacesOfRows(unsigned smem, const TilesOfRows& a, int dy_bytes, int x_bytes)
      : dy(smem), dy_bytes(dy_bytes), x_bytes(x_bytes) {
    x = dy + a.stages * dy_bytes;
    full = x + a.stages * x_bytes;
    done = full + kMostStages * 8;
  }
  __device__ __forceinline__ void begin(int stages, int warps) const {
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(full + s * 8, 1);
      mbarrier_init(done + s * 8, warps);
    }
    fence_mbarrier_init();
  }
};

// Brings the rows of all steps, as many under way as there are places; one thread does.
template <typename Steps>
__device__ __forceinline__ void bring_rows(const TilesOfRows& a, const PlacesOfRows& places, const TensorMap& x,
                                           const TensorMap& dy, int channel_x, int channel, Steps steps) {
  Turn turn;
  for (int filled = 0; steps.more(); steps.next(a), turn.next(a.stages), ++filled) {
    if (filled >= a.stages) mbarrier_wait(places.done + turn.at * 8, turn.parity ^ 1);
    const unsigned barrier = places.full + turn.at * 8;
    const bool of_x = steps.brings_x(a), of_dy = steps.brings_dy(a);
    mbarrier_arrive_expect_tx(barrier, (of_x ? places.x_bytes : 0) + (of_dy ? places.dy_bytes : 0));
    if (of_dy)
      tma_load(places.dy + turn.at * places.dy_bytes, dy, barrier, {channel, steps.q, steps.y, steps.d, steps.image});
    if (of_x) {
      tma_load(places.x + turn.at * places.x_bytes, x, barrier,
               {channel_x, steps.q - a.before_w, steps.y - a.before_h, steps.d - a.before_d, steps.image});
    }
  }
}

}  // namespace dnnarray
