// The weight gradient of a 3x3 window and a stride of 1 as matrix products whose right operand is one input for all taps: partial sums of
// dw[k, (r, s), c] = sum over m of dy[m, k] * x[m + r * down + s * across, c].
//
// Layout:  x and dy channels-last in memory, both seen as a raster: rows of `pitch` places, `height` rows an image, zeros where the image ends,
//          shared by what stands on either side of them. Then every tap is a shift of places. partial (splits, groups K, taps C) float32,
//          which split_sums.cu adds up in a fixed order. A block takes 64 output channels x 64 input channels x all taps over one
//          split of the places, one after another. Its first warpgroup brings 64 places a step of both, thread t chunk t % 8 (16
//          bytes) of every 16th place, to two rings of `ring` blocks; the first rows of the ring of x stand behind its end once more, so
//          that 16 places and their shifts are never divided. The other three multiply, each for one row of the window: its three taps
//          are panels of 64 columns that begin `across` places apart.
// Needs:   sm_90a; C of a group a multiple of 64, K of 8, pointers aligned to 16 bytes; padding less than the window's reach, shifts
//          of at most 4 places across; less than 2^31 places.
// Bound:   the matrix units. Sums in float32.

#include "dnnarray/barrier.cuh"
#include "dnnarray/conv.cuh"
#include "dnnarray/group_product_192.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
};
#define DNNARRAY_ENTRY conv_implicit_weight_halo_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kGroup = 128, kSide = 3, kThreads = (1 + kSide) * kGroup, kBlock = 64, kChannels = 64, kRow = 128, kChunks = 8;
constexpr int kStep = kGroup / kChunks, kBytes = kBlock * kRow;
constexpr int kMirrored = 16 + 2 * 4;  // rows of the ring that stand twice
constexpr int kFewer = 104, kMore = 136;  // registers of bringing and of multiplying threads
constexpr int kColumns = kSide * kChannels;

extern __shared__ char smem_memory[];

// An array as a raster: steps in elements, extents of what is not zero.
struct Plane {
  long long n, h, w;
  int height, width;
};

struct Arguments {
  const T *dy, *x;
  float* partial;
  Plane of_dy, of_x;
  int images, pitch, height, before, down, across;  // `before`: places from an output to its first tap, and from tap to tap
  int tiles_k, tiles_c, groups, outs, channels, splits, blocks, ring;

  __device__ __forceinline__ int late() const { return (kBlock - 1 + (kSide - 1) * (down + across)) / kBlock; }
};

struct Tile {
  int k, c, group, split, blocks;

  __device__ __forceinline__ static Tile of(const Arguments& a, int i) {
    const int c = i % a.tiles_c, by_c = i / a.tiles_c, k = by_c % a.tiles_k, by_k = by_c / a.tiles_k;
    const int group = by_k % a.groups, split = by_k / a.groups;
    const int all = (a.images * a.height * a.pitch + kBlock - 1) / kBlock;
    return {k * kChannels, c * kChannels, group, split, min(a.blocks, all - split * a.blocks)};
  }
};

// Two rings of blocks, the rows of x that stand twice, and the barriers of each block.
struct Shared {
  unsigned x, dy, full, empty;

  __device__ __forceinline__ Shared(unsigned first, int ring) : x(first) {
    dy = x + ring * kBytes + kMirrored * kRow;
    full = dy + ring * kBytes;
    empty = full + ring * 8;
  }
};

// Blocks that have passed since the kernel began, and where the next one stands.
struct Turn {
  int place = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next(int ring) {
    if (++place == ring) {
      place = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ Turn ahead(int blocks, int ring) const {
    Turn turn = *this;
    for (turn.place += blocks; turn.place >= ring; turn.place -= ring) turn.parity ^= 1;
    return turn;
  }
};

// --- the warpgroup that brings ----------------------------------------------------------------------------------------

// A place of a raster, walked in steps of kStep, and where it stands in an array.
struct Walk {
  int n, h, w;
  long long at;

  __device__ __forceinline__ Walk(const Arguments& a, const Plane& plane, long long place) {
    const Split by_w = split(place + static_cast<long long>(a.height) * a.pitch, a.pitch), by_h = split(by_w.quotient, a.height);
    n = static_cast<int>(by_h.quotient) - 1;  // one image on and back: never negative
    h = by_h.rest;
    w = by_w.rest;
    at = n * plane.n + h * plane.h + w * plane.w;
  }
  __device__ __forceinline__ void next(const Arguments& a, const Plane& plane) {
    at += kStep * plane.w;
    for (w += kStep; w >= a.pitch; w -= a.pitch) {
      at += plane.h - a.pitch * plane.w;
      if (++h < a.height) continue;
      at += plane.n - a.height * plane.h;
      h = 0;
      ++n;
    }
  }
  __device__ __forceinline__ bool inside(const Arguments& a, const Plane& plane) const {
    return static_cast<unsigned>(n) < static_cast<unsigned>(a.images) && h < plane.height && w < plane.width;
  }
};

__device__ __forceinline__ void bring_tile(const Arguments& a, const Tile& tile, const Shared& smem, Turn& turn) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks, late = a.late();
  const unsigned place = row * kRow + (chunk ^ row % 8) * 16;
  const T* x = a.x + tile.group * a.channels + tile.c + chunk * 8;
  const T* dy = a.dy + tile.group * a.outs + tile.k + chunk * 8;
  const bool in_k = tile.k + chunk * 8 < a.outs;
  const long long first = static_cast<long long>(tile.split) * a.blocks * kBlock + row;
  Walk of_x(a, a.of_x, first - a.before), of_dy(a, a.of_dy, first);
  for (int block = 0; block < tile.blocks + late; ++block) {
    barrier_wait(smem.empty + turn.place * 8, turn.parity ^ 1);
    const unsigned to_x = smem.x + turn.place * kBytes + place, to_end = smem.x + a.ring * kBytes + place;
#pragma unroll
    for (int i = 0; i < kBlock / kStep; ++i, of_x.next(a, a.of_x)) {
      const bool there = of_x.inside(a, a.of_x);
      const T* from = x + of_x.at;  // not read where nothing is there
      copy_async(to_x + i * kStep * kRow, from, there);
      if (turn.place == 0 && row + i * kStep < kMirrored) copy_async(to_end + i * kStep * kRow, from, there);
    }
    if (block >= late) {  // into the place that its step will look at
      const int own = turn.place - late % a.ring, to = own < 0 ? own + a.ring : own;
#pragma unroll
      for (int i = 0; i < kBlock / kStep; ++i, of_dy.next(a, a.of_dy)) {
        const bool there = in_k && of_dy.inside(a, a.of_dy);
        copy_async(smem.dy + to * kBytes + place + i * kStep * kRow, dy + of_dy.at, there);
      }
    }
    barrier_arrive_after_copies(smem.full + turn.place * 8);
    turn.next(a.ring);
  }
}

// --- the warpgroups that multiply -------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_tile(const Arguments& a, float (&sums)[kColumns / 2], const Tile& tile, int r, const Shared& smem,
                                              Turn& turn) {
  const int late = a.late(), rows = a.ring * kBlock;
  const bool leader = threadIdx.x % kGroup == 0;
  unsigned before = 0;
#pragma unroll
  for (int j = 0; j < kColumns / 2; ++j) sums[j] = 0;
  Turn newest = turn.ahead(late, a.ring);
  for (int block = 0; block < tile.blocks; ++block) {
    barrier_wait(smem.full + newest.place * 8, newest.parity);
    fence_async();
    wgmma_fence();
    const unsigned long long from_dy = transposed_panel(smem.dy + turn.place * kBytes, kBytes);
    int row = turn.place * kBlock + r * a.down;
    if (row >= rows) row -= rows;
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      Wgmma<T, true, true, kColumns>::run(sums, from_dy + 128 * k, transposed_panel(smem.x + row * kRow, a.across * kRow));
      row += 16;
      if (row >= rows) row -= rows;
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (block > 0 && leader) barrier_arrive(before);
    before = smem.empty + turn.place * 8;
    turn.next(a.ring);
    newest.next(a.ring);
  }
  wgmma_wait<0>();
  hold(sums);
  if (leader && tile.blocks > 0) barrier_arrive(before);
  for (int i = 0; i < late; ++i) {  // blocks that only shifts have looked at
    if (leader) barrier_arrive(smem.empty + turn.place * 8);
    turn.next(a.ring);
  }
}

__device__ __forceinline__ void write_tile(const Arguments& a, const float (&sums)[kColumns / 2], const Tile& tile, int r) {
  const int in_group = threadIdx.x % kGroup, row = tile.k + in_group / 32 * 16 + in_group % 32 / 4, column = tile.c + in_group % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = row + 8 * half;
    float* out = a.partial + ((static_cast<long long>(tile.split) * a.groups + tile.group) * a.outs + k) * (kSide * kSide) * a.channels;
    out += kSide * r * a.channels + column;
    if (k >= a.outs) continue;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      *reinterpret_cast<Vec<float, 2>*>(out + j / 8 * a.channels + j % 8 * 8) = {{sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]}};
    }
  }
}

// Steps of x and dy in elements; `outs` and `channels` of a group, `blocks` of 64 places in a split, `ring` in shared memory.
extern "C" __global__ void __launch_bounds__(kThreads, 1) DNNARRAY_ENTRY(
    const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial, long long images, long long pitch, long long height,
    long long channels, long long outs, long long groups, long long splits, long long blocks, long long ring, long long y_n, long long y_h,
    long long y_w, long long x_n, long long x_h, long long x_w, long long h0, long long h1, long long h2, long long w0, long long w1,
    long long w2) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const ConvAxis h(h0, h1, h2), w(w0, w1, w2);
  const Arguments a{dy, x, partial, {y_n, y_h, y_w, h.out, w.out}, {x_n, x_h, x_w, h.space, w.space},
                    i(images), i(pitch), i(height), h.before * i(pitch) + w.before, h.dilation * i(pitch), w.dilation,
                    (i(outs) - 1) / kChannels + 1, i(channels) / kChannels, i(groups), i(outs), i(channels), i(splits), i(blocks), i(ring)};
  const Shared smem((smem_address(smem_memory) + 1023) & ~1023u, a.ring);
  if (threadIdx.x == 0) {
    for (int b = 0; b < a.ring; ++b) {
      barrier_init(smem.full + b * 8, kGroup);
      barrier_init(smem.empty + b * 8, kSide);
    }
    barrier_init_done();
  }
  __syncthreads();
  const int tiles = a.tiles_k * a.tiles_c * a.groups * a.splits, r = static_cast<int>(threadIdx.x) / kGroup - 1;
  Turn turn;
  if (r < 0) {
    give_registers<kFewer>();
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) bring_tile(a, Tile::of(a, t), smem, turn);
  } else {
    take_registers<kMore>();
    float sums[kColumns / 2];
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
      const Tile tile = Tile::of(a, t);
      multiply_tile(a, sums, tile, r, smem, turn);
      write_tile(a, sums, tile, r);
    }
  }
}
