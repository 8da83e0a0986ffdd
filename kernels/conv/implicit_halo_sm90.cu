// Convolution of stride 1 as one matrix product whose left operand stays in shared memory for all taps: y[m, k] = f(sum over taps and c of
// x[m + tap, c] * w[k, tap, c] + bias[k] + residual[m, k]).
//
// Layout:  x channels-last in memory, seen as a raster: rows of `pitch` places, `height` rows an image, zeros where the image ends, shared
//          by what stands on either side of them. Then every tap is a shift, and kTileM neighbouring places of the output need
//          kTileM + reach places of the input. A block takes tiles of kTileM places x kTileN channels, one after another; places behind the
//          end of a row or an image are computed for nothing. w (groups K, window, C) by steps, C dense; kTransposed: the gradient of the
//          input from the forward's weight, whose dense channels are those of the result here.
//          Of the three warpgroups the first gathers the input of 64 channels (two buffers) and the weight of a tap (a ring of kStages),
//          thread t chunk t % 8 (16 bytes) of every 16th row. The other two multiply, each one half of the tile's rows, and write it.
// Needs:   sm_90a; C of a group a multiple of 64, K of 8, pointers aligned to 16 bytes; padding less than the window's reach.
// Bound:   the matrix units. Sums in float32.

#include "dnnarray/activation.cuh"
#include "dnnarray/barrier.cuh"
#include "dnnarray/tile.cuh"
#include "dnnarray/group_product.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 256;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 8;
  static constexpr bool kTransposed = false;
};
#define DNNARRAY_ENTRY conv_implicit_halo_sm90_default
#endif

using namespace dnnarray;
using T = Config::Element;
using R = Config::Result;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;
constexpr int kGroup = 128, kThreads = 3 * kGroup, kTileK = 64, kRow = 128, kChunks = 8, kStep = kGroup / kChunks;
constexpr int kMmas = kTileM / 128, kBytesN = kTileN * kRow;

extern __shared__ char smem_memory[];

struct Arguments {
  const T *x, *w;
  Target<T, R> target;
  ConvAxis h, w_axis;
  long long tiles_m, tiles_n, groups, images;
  int pitch, height, channels, reach;
  long long w_group, w_row, w_h, w_w, x_n, x_h, x_w;
};

struct Tile {
  long long m;
  int n, group;

  __device__ __forceinline__ static Tile of(const Arguments& a, long long i) {
    const Split by_n = split(i, static_cast<int>(a.tiles_n));
    const long long group = by_n.quotient / a.tiles_m;
    return {(by_n.quotient - group * a.tiles_m) * kTileM, by_n.rest * kTileN, static_cast<int>(group)};
  }
};

// Where things lie in shared memory: two input buffers, the ring of weights, the barriers.
struct Shared {
  unsigned input, input_bytes, weight, input_full, input_empty, full, empty;

  __device__ __forceinline__ Shared(unsigned first, int reach) : input(first) {
    input_bytes = ((kTileM + reach) * kRow + 1023) & ~1023u;
    weight = input + 2 * input_bytes;
    input_full = weight + kStages * kBytesN;
    input_empty = input_full + 16;
    full = input_empty + 16;
    empty = full + kStages * 8;
  }
};

// --- the warpgroup that gathers ---------------------------------------------------------------------------------------

// The input of 64 channels for all taps of a tile; `x` points at this thread's chunk of them.
__device__ __forceinline__ void gather_input(const Arguments& a, const T* x, long long first, unsigned target) {
  const int row = threadIdx.x / kChunks, rows = kTileM + a.reach;
  const long long image = static_cast<long long>(a.height) * a.pitch, place = first + row + image;  // one image on: never negative
  const Split by_w = split(place, a.pitch), by_h = split(by_w.quotient, a.height);
  long long n = by_h.quotient - 1;
  int h = by_h.rest, w = by_w.rest;
  for (int i = row; i < rows; i += kStep) {
    const bool there = n >= 0 && n < a.images && h < a.h.space && w < a.w_axis.space;
    copy_async(target + i * kRow, there ? x + n * a.x_n + h * a.x_h + w * a.x_w : a.x, there);
    for (w += kStep; w >= a.pitch; w -= a.pitch) {
      if (++h < a.height) continue;
      h = 0;
      ++n;
    }
  }
}

// The weight of one tap: rows of the result's channels, or kTransposed of the sum's in panels of 64 of the result's.
__device__ __forceinline__ void gather_weight(const Arguments& a, const Tile& tile, const T* w, unsigned target) {
  const int first = Config::kTransposed ? tile.n + threadIdx.x % kChunks * 8 : tile.n + static_cast<int>(threadIdx.x) / kChunks;
  const int last = a.target.outs - first;
  if constexpr (Config::kTransposed) {
#pragma unroll
    for (int i = 0; i < kTileK / kStep; ++i, w += kStep * a.w_row)
#pragma unroll
      for (int p = 0; p < kTileN / 64; ++p) {
        copy_async(target + p * kTileK * kRow + i * kStep * kRow, p * 64 < last ? w + p * 64 : a.w, p * 64 < last);
      }
  } else {
#pragma unroll
    for (int i = 0; i < kTileN / kStep; ++i, w += kStep * a.w_row) {
      copy_async(target + i * kStep * kRow, kStep * i < last ? w : a.w, kStep * i < last);
    }
  }
}

__device__ __forceinline__ void gather_tile(const Arguments& a, const Tile& tile, const Shared& smem, Ring<2>& inputs, Ring<kStages>& ring) {
  const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
  const unsigned place = (chunk ^ row % 8) * 16;
  const long long first = tile.m - a.h.before * static_cast<long long>(a.pitch) - a.w_axis.before;
  const T* x = a.x + static_cast<long long>(tile.group) * a.channels + chunk * 8;
  const T* w = a.w + tile.group * a.w_group;
  w += Config::kTransposed ? row * a.w_row + tile.n + chunk * 8 : (tile.n + row) * a.w_row + chunk * 8;
  for (int c = 0; c < a.channels; c += kTileK, x += kTileK) {
    barrier_wait(smem.input_empty + inputs.stage * 8, inputs.parity ^ 1);
    gather_input(a, x, first, smem.input + inputs.stage * smem.input_bytes + place);
    barrier_arrive_after_copies(smem.input_full + inputs.stage * 8);
    inputs.next();
    for (int r = 0; r < a.h.window; ++r)
      for (int s = 0; s < a.w_axis.window; ++s) {
        barrier_wait(smem.empty + ring.stage * 8, ring.parity ^ 1);
        gather_weight(a, tile, w + r * a.w_h + s * a.w_w, smem.weight + ring.stage * kBytesN + row * kRow + place);
        barrier_arrive_after_copies(smem.full + ring.stage * 8);
        ring.next();
      }
    w += Config::kTransposed ? kTileK * a.w_row : kTileK;
  }
}

// --- the warpgroups that multiply -------------------------------------------------------------------------------------

// What the matrix units have done with is given back one step later.
struct Release {
  unsigned weight, input;

  __device__ __forceinline__ void run() {
    if (threadIdx.x % kGroup == 0) {
      if (weight != 0) barrier_arrive(weight);
      if (input != 0) barrier_arrive(input);
    }
    weight = input = 0;
  }
};

__device__ __forceinline__ void multiply_tile(const Arguments& a, float (&sums)[kMmas][kTileN / 2], int part, const Shared& smem, Ring<2>& inputs,
                                              Ring<kStages>& ring) {
  constexpr bool kTurned = Config::kTransposed;
  Release release = {0, 0};
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int j = 0; j < kTileN / 2; ++j) sums[i][j] = 0;
  for (int c = 0; c < a.channels; c += kTileK) {
    const unsigned input = smem.input + inputs.stage * smem.input_bytes + part * kMmas * 64 * kRow;
    barrier_wait(smem.input_full + inputs.stage * 8, inputs.parity);
    for (int r = 0; r < a.h.window; ++r)
      for (int s = 0; s < a.w_axis.window; ++s) {
        const unsigned weight = smem.weight + ring.stage * kBytesN;
        barrier_wait(smem.full + ring.stage * 8, ring.parity);
        fence_async();
        wgmma_fence();
        const unsigned long long from_b = kTurned ? transposed_panel(weight, kTileK * kRow) : panel(weight);
#pragma unroll
        for (int i = 0; i < kMmas; ++i) {
          const unsigned at = input + (r * a.h.dilation * a.pitch + s * a.w_axis.dilation + i * 64) * kRow;
          const unsigned long long from_a = panel(at);
#pragma unroll
          for (int k = 0; k < 4; ++k) Wgmma<T, false, kTurned, kTileN>::run(sums[i], from_a + 2 * k, from_b + (kTurned ? 128 : 2) * k);
        }
        wgmma_commit();
        wgmma_wait<1>();
        release.run();
        release.weight = smem.empty + ring.stage * 8;
        ring.next();
      }
    release.input = smem.input_empty + inputs.stage * 8;
    inputs.next();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kMmas; ++i) hold(sums[i]);
  release.run();
}

__device__ __forceinline__ void write_tile(const Arguments& a, const float (&sums)[kMmas][kTileN / 2], const Tile& tile, int part) {
  const int in_group = threadIdx.x % kGroup, row = in_group / 32 * 16 + in_group % 32 / 4;
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Split by_w = split(tile.m + (part * kMmas + i) * 64 + row + half * 8, a.pitch), by_h = split(by_w.quotient, a.height);
      const bool there = by_w.rest < a.w_axis.out && by_h.rest < a.h.out && by_h.quotient < a.images;
      const long long at = by_h.quotient * a.target.y_n + by_h.rest * a.target.y_h + by_w.rest * a.target.y_w;
      write_row<Config, kTileN>(a.target, sums[i], half, tile.group, tile.n, at, there);
    }
}

// All steps are in elements; `channels` of the sum and `outs` of the result are of one group.
extern "C" __global__ void __launch_bounds__(kThreads, 1) DNNARRAY_ENTRY(
    const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias, const T* __restrict__ residual, R* __restrict__ y,
    long long images, long long pitch, long long height, long long reach, long long channels, long long tiles_m, long long tiles_n,
    long long groups, long long outs, long long w_group, long long w_row, long long w_h, long long w_w, long long x_n, long long x_h,
    long long x_w, long long y_n, long long y_h, long long y_w, long long h0, long long h1, long long h2, long long w0, long long w1,
    long long w2, double p, double q) {
  const Target<T, R> target = {bias, residual, y, static_cast<int>(outs), y_n, 0, y_h, y_w, float(p), float(q)};
  const Arguments a = {x, weight, target, {h0, h1, h2}, {w0, w1, w2}, tiles_m, tiles_n, groups, images, static_cast<int>(pitch),
                       static_cast<int>(height), static_cast<int>(channels), static_cast<int>(reach), w_group, w_row, w_h, w_w, x_n, x_h, x_w};
  const Shared smem((smem_address(smem_memory) + 1023) & ~1023u, a.reach);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 + kStages; ++i) {
      barrier_init(i < 2 ? smem.input_full + i * 8 : smem.full + (i - 2) * 8, kGroup);
      barrier_init(i < 2 ? smem.input_empty + i * 8 : smem.empty + (i - 2) * 8, 2);
    }
    barrier_init_done();
  }
  __syncthreads();
  const long long tiles = tiles_m * tiles_n * groups;
  const int part = static_cast<int>(threadIdx.x) / kGroup - 1;
  Ring<2> inputs;
  Ring<kStages> ring;
  if (part < 0) {
    give_registers<72>();
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) gather_tile(a, Tile::of(a, i), smem, inputs, ring);
  } else {
    take_registers<216>();
    float sums[kMmas][kTileN / 2];
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const Tile tile = Tile::of(a, i);
      multiply_tile(a, sums, part, smem, inputs, ring);
      write_tile(a, sums, tile, part);
    }
  }
}
