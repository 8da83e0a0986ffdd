// What the gradients of maxima by long runs of rows have in common: a block's tile of a plane, how its runs come into
// shared memory, and how lanes beside each other write a row. By the kernel's Config: kernels include it behind that.
#pragma once

#include "pool/bulk_copy.cuh"
#include "pool/window.cuh"
#include "pool/argmax.cuh"
#include "dnnarray/core/ring.cuh"
#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/ptx/opaque.cuh"

namespace dnnarray {

using T = Config::Element;
constexpr bool kHalves = sizeof(T) == 2;
constexpr int kWindowH = Config::kWindowH, kStrideH = Config::kStrideH, kWindowW = Config::kWindowW,
              kStrideW = Config::kStrideW;
constexpr int kColumns = Config::kColumns, kLanes = Config::kLanes, kStages = Config::kStages;
constexpr int kPart = kHalves ? 2 : 1, kMost = 16 / sizeof(T), kVector = kColumns < kMost ? kColumns : kMost;
constexpr int kOwn = kColumns / kStrideW, kMargin = Config::kBefore, kBeyond = kWindowW - kStrideW - kMargin,
              kSeen = kMargin + kColumns + kBeyond;
constexpr int kLeft = (kMargin + kPart - 1) / kPart, kBody = kColumns / kPart, kRight = (kBeyond + kPart - 1) / kPart,
              kWords = kLeft + kBody + kRight;
constexpr int kRows = (kWindowH - 1) / kStrideH + 1,
              kKept = kWindowH - kStrideH;  // rows of windows over a row of x; rows that windows share
constexpr int kStrips = Config::kThreads / kLanes;
// Shared memory begins with the barriers, and with what stands for rows of windows and of x that there are not.
constexpr int kHead = 128, kZerosAt = kHead - 64, kNothingAt = kHead - 32;
constexpr unsigned kNothing = 0x7fff7fffu;  // NaN
static_assert(kKept >= 0 && kBeyond >= 0 && kLeft <= kBody && kRight <= kBody && kColumns % kStrideW == 0,
              "neighbours are beside each other");

// What a block writes of a plane, and reads for that.
struct Tile {
  long long plane;
  int first, last, top, rows, top_window,
      windows;  // rows of windows below which it writes; rows of x, and of windows, that it reads
};
// All of them, of which a block has every gridDim.x-th.
struct Tiles {
  long long total;
  Divider by_tiles;        // of a plane
  int steps, room, stage;  // rows of windows of a strip; bytes of what is read first, and of all
  Axis<false> h, w;

  template <typename Arguments>
  __device__ __forceinline__ explicit Tiles(const Arguments& a)
      : total(a.total),
        by_tiles(a.tiles),
        steps(a.steps),
        room(a.room),
        stage(a.stage),
        h(a.h, kWindowH, kStrideH),
        w(a.w, kWindowW, kStrideW) {}

  __device__ __forceinline__ Tile operator()(long long number) const {
    const auto at = by_tiles(number);
    Tile t;
    t.plane = at.quotient;
    t.first = h.before / kStrideH + at.rest * kStrips * steps;
    t.last = min(t.first + kStrips * steps, (h.extent + h.before + kStrideH - 1) / kStrideH) - 1;
    const int p = t.first - (kRows - 1);
    t.top = max(p * kStrideH - h.before, 0), t.rows = min(t.last * kStrideH - h.before + kWindowH, h.extent) - t.top;
    t.top_window = max(p, 0), t.windows = max(min(t.last + 1, h.outputs) - t.top_window, 0);
    return t;
  }
};

__device__ __forceinline__ bool within(int i, int n) { return static_cast<unsigned>(i) < static_cast<unsigned>(n); }

// A thread's place in a row: its columns, among lanes that have those beside them.
struct Place {
  int group;
  bool there;
  unsigned left, right;  // all bits where nothing is to that side; predicates would not last

  __device__ __forceinline__ explicit Place(int width) {
    const int lane = threadIdx.x % kLanes, groups = width / kColumns;
    group = min(lane, groups - 1), there = lane < groups;
    left = group == 0 ? ~0u : 0, right = group == groups - 1 ? ~0u : 0;
    opaque(left), opaque(right);
  }
  // What the lanes before and behind have, or `nothing`; all lanes of a warp ask together.
  __device__ __forceinline__ unsigned from_left(unsigned word, unsigned nothing) const {
    return (__shfl_up_sync(~0u, word, 1) & ~left) | (nothing & left);
  }
  __device__ __forceinline__ unsigned from_right(unsigned word, unsigned nothing) const {
    return (__shfl_down_sync(~0u, word, 1) & ~right) | (nothing & right);
  }
  // What a thread has for the columns beside its own goes to the neighbours.
  __device__ __forceinline__ void exchange(float (&own)[kColumns], const float (&sums)[kSeen]) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) own[c] = sums[kMargin + c];
#pragma unroll
    for (int i = 0; i < kMargin; ++i)
      own[kColumns - kMargin + i] += __uint_as_float(from_right(__float_as_uint(sums[i]), 0));
#pragma unroll
    for (int i = 0; i < kBeyond; ++i)
      own[i] += __uint_as_float(from_left(__float_as_uint(sums[kMargin + kColumns + i]), 0));
  }
};

__device__ __forceinline__ void put(T* dx, const float (&own)[kColumns]) {
#pragma unroll
  for (int c = 0; c < kColumns; c += kVector) {
    float piece[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) piece[k] = own[c + k];
    store(dx + c, narrow_all<T, kVector>(piece));
  }
}

// Rows of an array that follow each other, as a run: from the multiple of 16 bytes before the first to that behind the
// last.
struct Run {
  const char* from;
  unsigned skipped, bytes;

  template <typename U>
  __device__ __forceinline__ Run(const U* array, long long plane_rows, int first, int rows, int width) {
    const int row = width * static_cast<int>(sizeof(U));
    skipped = first * row % 16, bytes = (skipped + max(rows, 0) * row + 15) / 16 * 16;
    from = reinterpret_cast<const char*>(array) + (plane_rows + first) * row - skipped;
  }
  __device__ __forceinline__ void ask(unsigned smem, unsigned barrier) const {
    if (bytes > 0) copy_run(smem, from, bytes, barrier);
  }
};

// A thread's strip of a tile: it walks down so many steps, a row of windows each; below the first ones nothing is
// complete that it writes.
struct Strip {
  Place place;
  T* dx;                // row h
  int h, p, left;       // the step's rows of x and of windows, and how many steps there are with it
  int writing;          // how many of these, the last ones, find rows complete
  int height, outputs;  // of x and of windows, the rows that are here
  int written;          // of x, likewise, or none

  __device__ __forceinline__ Strip(const Tiles& tiles, const Tile& t, const Place& its, T* gmem_dx) : place(its) {
    const int first = t.first + static_cast<int>(threadIdx.x) / kLanes * tiles.steps;
    p = first - (kRows - 1), h = p * kStrideH - tiles.h.before, writing = tiles.steps, left = writing + kRows - 1;
    height = min(t.top + t.rows, tiles.h.extent), written = place.there && first <= t.last ? height : 0;
    outputs = t.top_window + t.windows;
    dx = gmem_dx + (t.plane * tiles.h.extent + h) * tiles.w.extent + place.group * kColumns;
  }
  // Row `r` of windows, the thread's own, of rows that are in a box from row `top` on.
  template <typename U>
  static __device__ __forceinline__ const char* windows_at(const char* box, int r, int top, int outputs,
                                                           const Place& place) {
    const int row = outputs * static_cast<int>(sizeof(U));
    return box + top * row % 16 + (r - top) * row + place.group * kOwn * static_cast<int>(sizeof(U));
  }
};

// Walks through a block's tiles, of which kStages are under way: `ask` (tile, address, barrier) asks for what is read,
// `walk` (tile, box) does the rest.
template <typename AllTiles, typename Ask, typename Each>
__device__ __forceinline__ void through(const AllTiles& tiles, char* smem, char* boxes, Ask ask, Each walk) {
  const unsigned full = shared_address(smem), to = shared_address(boxes);
  const auto ask_for = [&](long long number, int stage) {
    if (number < tiles.total) ask(tiles(number), to + stage * tiles.stage, full + 8 * stage);
  };
  if (threadIdx.x == 0) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) mbarrier_init(full + 8 * s, 1);
    fence_mbarrier_init();
#pragma unroll
    for (int s = 0; s < kStages; ++s) ask_for(blockIdx.x + static_cast<long long>(s) * gridDim.x, s);
  }
  __syncthreads();
  Ring<kStages> ring;
  for (long long number = blockIdx.x; number < tiles.total; number += gridDim.x) {
    const auto t = tiles(number);
    mbarrier_wait(full + 8 * ring.stage, ring.parity);
    walk(t, boxes + ring.stage * tiles.stage);
    __syncthreads();
    if (threadIdx.x == 0) ask_for(number + static_cast<long long>(kStages) * gridDim.x, ring.stage);
    ring.next();
  }
}

}  // namespace dnnarray
