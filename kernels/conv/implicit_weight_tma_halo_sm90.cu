// The weight gradient of a window of 3 x 3, or t x 3 x 3, and a stride of 1 as matrix products whose right operand is
// one input for all taps of a plane: partial sums of dw[k, (t, r, s), c] = sum over m of dy[m, k] * x[m + r * down + s
// * across, c], x moved by t planes.
//
// Layout:  x and dy channels-last in memory, behind tensor maps of windows of one pixel whose corners make a raster of
//          each plane: rows of `pitch` places, `height` rows, zeros where the plane ends, shared by what stands on
//          either side of them. Then every tap of a plane is a shift of places. partial (splits, groups K, taps C)
//          float32, which split_sums.cu adds up in a fixed order. A block takes 64 output channels x 64 input channels
//          x all taps of a plane over one split of the places, one after another. A thread of its first warpgroup asks
//          for 64 places a step of both, into two rings of `ring` blocks; the first rows of the ring of x stand behind
//          its end once more, so that 16 places and their shifts are never divided. The other three multiply, each for
//          one row of the window: its three taps are panels of 64 columns that begin `across` places apart.
// Needs:   sm_90a; C of a group a multiple of 64 where there are several groups; strides of x and dy multiples of 16
//          bytes; padding less than the window's reach, shifts of at most 4 places across; less than 2^31 places.
// Bound:   the tensor cores. Sums in float32.

#include "conv/wgrad.cuh"
#include "dnnarray/core/overlap.cuh"
#include "conv/im2col.cuh"
#include "dnnarray/mma/warpgroup.cuh"
#include "dnnarray/ptx/tma.cuh"
#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/ptx/setmaxnreg.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kAxes = 2;
  static constexpr int kSize = 64;
};
struct Arguments {
  dnnarray::TensorMap dy;
  dnnarray::TensorMap x;
  dnnarray::TensorMap x_end;
  int images;
  int pitch;
  int height;
  int channels;
  int outs;
  int groups;
  int splits;
  int blocks;
  int ring;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_implicit_weight_tma_halo_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kGroup = 128, kSide = 3, kThreads = (1 + kSide) * kGroup, kBlock = 64, kChannels = 64, kRow = 128;
constexpr int kBytes = kBlock * kRow;
constexpr int kMirrored = 16 + 2 * 4;    // rows of the ring that stand twice
constexpr int kFewer = 56, kMore = 152;  // registers of asking and of multiplying threads
constexpr int kColumns = kSide * kChannels;
constexpr int kSize =
    Config::kSize;  // 64, or channels of the groups on both sides that make up 64: only sums within a group are kept

extern __shared__ char smem_memory[];

struct Operands {
  WeightSums sums;
  ConvAxes axes;
  int images, pitch, height, down, across;  // places from tap to tap
  int tiles_k, tiles_c, splits, blocks, ring;

  __device__ __forceinline__ int late() const { return (kBlock - 1 + (kSide - 1) * (down + across)) / kBlock; }
  __device__ __forceinline__ int places() const { return images * axes.d.out * height * pitch; }
  __device__ __forceinline__ WindowPlace where(int place) const {
    const Split by_w = split(place, pitch), by_h = split(by_w.quotient, height),
                by_d = split(by_h.quotient, axes.d.out);
    return {0, by_w.rest, by_h.rest, by_d.rest, static_cast<int>(by_d.quotient)};
  }
  // A block further, by the distance that `step` is from place 0: divisions would take as long as a step's products.
  __device__ __forceinline__ void advance(WindowPlace& place, const WindowPlace& step) const {
    place.w += step.w, place.h += step.h, place.d += step.d, place.n += step.n;
    if (place.w >= pitch) place.w -= pitch, ++place.h;
    if (place.h >= height) place.h -= height, ++place.d;
    if (place.d >= axes.d.out) place.d -= axes.d.out, ++place.n;
  }
};

struct Tile {
  int k, c, plane, group, split, blocks;

  __device__ __forceinline__ static Tile of(const Operands& a, int i) {
    const int c = i % a.tiles_c, by_c = i / a.tiles_c, k = by_c % a.tiles_k, by_k = by_c / a.tiles_k;
    const int plane = by_k % a.axes.d.window, by_plane = by_k / a.axes.d.window;
    const int group = by_plane % a.sums.groups, split = by_plane / a.sums.groups;
    const int all = (a.places() + kBlock - 1) / kBlock;
    return {k * kChannels, c * kChannels, plane, group, split, min(a.blocks, all - split * a.blocks)};
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
};

// --- the thread that asks
// ---------------------------------------------------------------------------------------------

struct Maps {
  const TensorMap &dy, &x, &x_end;  // x_end: of the rows that stand twice
};

__device__ __forceinline__ void ask_tile(const Operands& a, const Maps& maps, const Tile& tile, const Shared& smem,
                                         Turn& turn) {
  const int late = a.late(), first = tile.split * a.blocks * kBlock;
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  const TapPlace offset = {0, 0, static_cast<unsigned short>(tile.plane * d.dilation)};
  const WindowPlace step = a.where(kBlock);
  WindowPlace of_x = a.where(first), of_dy = of_x;
  of_dy.c = tile.group * a.sums.outs + tile.k;
  for (int block = 0; block < tile.blocks + late; ++block) {
    const unsigned full = smem.full + turn.place * 8;
    const bool mirrored = turn.place == 0, behind = block >= late;
    const WindowPlace place = {tile.group * a.sums.channels + tile.c, of_x.w - w.before, of_x.h - h.before,
                               of_x.d * d.stride - d.before, of_x.n};
    a.advance(of_x, step);
    mbarrier_wait(smem.empty + turn.place * 8, turn.parity ^ 1);
    mbarrier_arrive_expect_tx(full, kBytes + (mirrored ? kMirrored * kRow : 0) + (behind ? kBytes : 0));
    tma_load_im2col<Config::kAxes>(smem.x + turn.place * kBytes, maps.x, full, place, offset);
    if (mirrored) tma_load_im2col<Config::kAxes>(smem.x + a.ring * kBytes, maps.x_end, full, place, offset);
    if (behind) {  // into the place that its step will look at
      const int own = turn.place - late % a.ring, to = own < 0 ? own + a.ring : own;
      tma_load_im2col<Config::kAxes>(smem.dy + to * kBytes, maps.dy, full, of_dy, TapPlace{0, 0, 0});
      a.advance(of_dy, step);
    }
    turn.next(a.ring);
  }
}

// --- the warpgroups that multiply
// -------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_tile(const Operands& a, float (&sums)[kColumns / 2], const Tile& tile, int r,
                                              const Shared& smem, Turn& turn) {
  const int late = a.late(), rows = a.ring * kBlock;
  const bool leader = threadIdx.x % kGroup == 0;
  unsigned before = 0;
#pragma unroll
  for (int j = 0; j < kColumns / 2; ++j) sums[j] = 0;
  Turn newest = turn;
  for (int i = 0; i < late; ++i, newest.next(a.ring))
    mbarrier_wait(smem.full + newest.place * 8, newest.parity);  // they arrive in any order
  for (int block = 0; block < tile.blocks; ++block) {
    mbarrier_wait(smem.full + newest.place * 8, newest.parity);
    wgmma_fence();
    const unsigned long long from_dy = transposed_panel(smem.dy + turn.place * kBytes, kBytes);
    int row = turn.place * kBlock + r * a.down;
    if (row >= rows) row -= rows;
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      Wgmma<T, true, true, kColumns>::run(sums, from_dy + 128 * k,
                                          transposed_panel(smem.x + row * kRow, a.across * kRow));
      row += 16;
      if (row >= rows) row -= rows;
    }
    wgmma_commit_group();
    wgmma_wait_group<1>();
    if (block > 0 && leader) mbarrier_arrive(before);
    before = smem.empty + turn.place * 8;
    turn.next(a.ring);
    newest.next(a.ring);
  }
  wgmma_wait_group<0>();
  hold(sums);
  if (leader && tile.blocks > 0) mbarrier_arrive(before);
  for (int i = 0; i < late; ++i) {  // blocks that only shifts have looked at
    if (leader) mbarrier_arrive(smem.empty + turn.place * 8);
    turn.next(a.ring);
  }
}

__device__ __forceinline__ void write_tile(const Operands& a, const float (&sums)[kColumns / 2], const Tile& tile,
                                           int r) {
  const int in_group = threadIdx.x % kGroup, row = tile.k + in_group / 32 * 16 + in_group % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int k = row + 8 * half;
    if (k >= a.sums.outs) continue;
    const int tap = (tile.plane * kSide + r) * kSide;
    write_partial<0, kSize>(a.sums, sums, half, tile.split, tile.group, k, tap, tile.c);
    write_partial<32, kSize>(a.sums, sums, half, tile.split, tile.group, k, tap + 1, tile.c);
    write_partial<64, kSize>(a.sums, sums, half, tile.split, tile.group, k, tap + 2, tile.c);
  }
}

// `outs` and `channels` of a group, `blocks` of 64 places in a split, `ring` in shared memory.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(float* __restrict__ partial, const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const ConvAxes& axes = a.axes;
  const Operands operands{{partial, a.groups, a.outs, axes.d.window * kSide * kSide, a.channels},
                          axes,
                          a.images,
                          a.pitch,
                          a.height,
                          axes.h.dilation * a.pitch,
                          axes.w.dilation,
                          (a.outs - 1) / kChannels + 1,
                          (a.channels - 1) / kChannels + 1,
                          a.splits,
                          a.blocks,
                          a.ring};
  const Shared smem((shared_address(smem_memory) + 1023) & ~1023u, operands.ring);
  if (threadIdx.x == 0) {
    for (int b = 0; b < operands.ring; ++b) {
      mbarrier_init(smem.full + b * 8, 1);
      mbarrier_init(smem.empty + b * 8, kSide);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int tiles = operands.tiles_k * operands.tiles_c * axes.d.window * operands.sums.groups * operands.splits,
            r = warpgroup() - 1;
  Turn turn;
  if (r < 0) {
    setmaxnreg_dec<kFewer>();
    if (threadIdx.x == 0) {
      prefetch_tensormap(a.dy);
      prefetch_tensormap(a.x);
      for (int t = blockIdx.x; t < tiles; t += gridDim.x)
        ask_tile(operands, {a.dy, a.x, a.x_end}, Tile::of(operands, t), smem, turn);
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<kMore>();
    float sums[kColumns / 2];
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
      const Tile tile = Tile::of(operands, t);
      multiply_tile(operands, sums, tile, r, smem, turn);
      write_tile(operands, sums, tile, r);
    }
  }
}
