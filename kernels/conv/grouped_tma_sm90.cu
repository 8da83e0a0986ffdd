// Convolution of groups of 16 or 32 channels, their windows gathered by the copy engine: y[n, k, p] = f(sum over taps and c of the group of
// x[n, c, p * stride + tap * dilation - before] * w[k, c, tap] + bias[k] + residual[n, k, p]).
//
// Layout:  x and y channels-last in memory behind tensor maps of windows, as in implicit_tma_sm90.cu, w (groups K, taps, C) behind a tiled one. A block
//          takes tiles of kTileM pixels x 64 channels, which are 64 / kSize whole groups on both sides, one after another. One thread of the first
//          warpgroup asks for the 64 channels of all pixels at each tap, and for the weights of those groups, 64 rows of one group's channels,
//          through a ring of kStages. The other warpgroups multiply each group's columns of the pixels by its own rows of weights: what a product
//          takes is kSize channels wide on both sides, and nothing is filled up with zeros. kTransposed: the gradient of the input from the
//          forward's weight, whose rows are channels of the sum here.
//          kAcross > 1: the window's columns take one box together. Then the map makes a raster of each row of the result, `pitch` places with
//          zeros where the image ends, a column of the window is a shift of places, and the result is written from registers, since the copy
//          engine stores no places outside of an array.
// Needs:   sm_90a; half types; strides of x, y and w multiples of 16 bytes; corners and offsets of the window within what a map can hold. kAcross
//          columns of a window have a stride of 1, and kReach places from the first to the last.
// Bound:   the second-level cache: what shares no box fetches its pixels anew. Sums in float32.

#include "dnnarray/activation.cuh"
#include "dnnarray/conv_tma.cuh"
#include "dnnarray/gather.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 256;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 5;
  static constexpr bool kTransposed = false;
  static constexpr int kAxes = 2;
  static constexpr int kSize = 16;
  static constexpr int kAcross = 1;
};
#define DNNARRAY_ENTRY conv_grouped_tma_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using Out = TmaResult<Config>;
using T = Config::Element;
using R = Config::Result;
constexpr int kSize = Config::kSize, kGroups = 64 / kSize, kSums = kSize / 2;        // channels of a group; groups of a tile; a thread's sums of one
constexpr int kRowW = kSize * 2, kBytesW = 64 * kRowW, kPart = kSize * kRowW;        // bytes of the weights: of a row, of all, of a group
constexpr int kAcross = Config::kAcross, kReach = kAcross > 1 ? 8 : 0;  // taps of a box, places behind a tile's last one
constexpr int kBytesX = C::kBytesM + kReach * C::kRow, kStages = Config::kStages, kStage = kBytesX + kAcross * kBytesW;
constexpr bool kStaged = Out::kStaged && kAcross == 1;
constexpr int kNext = Config::kTransposed ? 16 * kRowW / 16 : 2;  // from 16 channels of the sum to the next ones, in units of a descriptor

extern __shared__ char smem_memory[];

struct Arguments {
  Target<T, R> target;
  TmaWeight weight;
  ConvAxes axes;
  long long rows;
  int pitch;

  __device__ __forceinline__ WindowPlace where(long long m) const {
    const Split by_w = split(m, pitch), by_h = split(by_w.quotient, axes.h.out), by_d = split(by_h.quotient, axes.d.out);
    return {0, by_w.rest, by_h.rest, by_d.rest, static_cast<int>(by_d.quotient)};
  }
  __device__ __forceinline__ long long at(long long m) const {
    const WindowPlace p = where(m);
    return m < rows && p.w < axes.w.out ? p.n * target.y_n + p.d * target.y_d + p.h * target.y_h + p.w * target.y_w : -1;
  }
};

struct Barriers {
  unsigned full, empty;  // of the first stage
};

__device__ __forceinline__ void ask_tile(const Arguments& a, const TensorMap& x, const TensorMap& weight, const TmaPlace& tile, unsigned smem,
                                         const Barriers& barriers, Ring<kStages>& ring) {
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  WindowPlace place = a.where(tile.m);
  place.c = tile.n;
  place.w = place.w * w.stride - w.before, place.h = place.h * h.stride - h.before, place.d = place.d * d.stride - d.before;
  Place tap = {0, 0, 0};
  do {
    const unsigned stage = smem + ring.stage * kStage, full = barriers.full + ring.stage * 8;
    const TapPlace offset = {static_cast<unsigned short>(tap.w * w.dilation), static_cast<unsigned short>(tap.h * h.dilation),
                             static_cast<unsigned short>(tap.d * d.dilation)};
    const TmaWeight& walk = a.weight;
    barrier_wait(barriers.empty + ring.stage * 8, ring.parity ^ 1);
    barrier_expect(full, kStage);
    copy_windows<Config::kAxes>(stage, x, full, place, offset);
#pragma unroll
    for (int i = 0; i < kAcross; ++i) {
      const BoxPlace taps = {0, walk.walked(tap.w + i, walk.w, 1), walk.walked(tap.h, walk.h, 2), walk.walked(tap.d, walk.d, 4), tile.n};
      copy_box(stage + kBytesX + i * kBytesW, weight, full, taps);
    }
    ring.next();
  } while (!tap.next(d.window, h.window, kAcross > 1 ? 1 : w.window));
}

// Adds the products of one tap; `rows` are those of this warpgroup.
__device__ __forceinline__ void multiply_tap(float (&sums)[C::kMmas][kGroups][kSums], unsigned rows, unsigned weight) {
#pragma unroll
  for (int i = 0; i < C::kMmas; ++i) {
    const unsigned long long x = panel(rows + i * 64 * C::kRow);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const unsigned long long w = narrow_panel<kRowW>(weight + group * kPart);
#pragma unroll
      for (int k = 0; k < kSize / 16; ++k) {
        Wgmma<T, false, Config::kTransposed, kSize>::run(sums[i][group], x + 2 * (group * kSize / 16 + k), w + kNext * k);
      }
    }
  }
}

// All taps of a stage, neighbours `apart` places from each other.
__device__ __forceinline__ void multiply(float (&sums)[C::kMmas][kGroups][kSums], unsigned rows, unsigned weight, int apart) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kAcross; ++i) multiply_tap(sums, rows + i * apart * C::kRow, weight + i * kBytesW);
  wgmma_commit();
}

// A tile's sums in the order of its 64 columns.
__device__ __forceinline__ void multiply_tile(const Arguments& a, const TmaPlace& tile, float (&sums)[C::kMmas][32], int stages, int part,
                                              unsigned smem, const Barriers& barriers, Ring<kStages>& ring, Out& out) {
  unsigned before = 0;
  const C::Bias bias(a.target, tile);
  float found[C::kMmas][kGroups][kSums] = {};
  for (int i = 0; i < stages; ++i) {
    const unsigned stage = smem + ring.stage * kStage;
    barrier_wait(barriers.full + ring.stage * 8, ring.parity);
    multiply(found, stage + part * C::kMmas * 64 * C::kRow, stage + kBytesX, a.axes.w.dilation);
    wgmma_wait<1>();
    if (i > 0) C::release(before);
    if (i == 1) out.settle();
    before = barriers.empty + ring.stage * 8;
    ring.next();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < C::kMmas; ++i) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      hold(found[i][group]);
#pragma unroll
      for (int j = 0; j < kSums; ++j) sums[i][group * kSums + j] = found[i][group][j];
    }
  }
  C::release(before);
  bias.add(sums);
}

// `rows` places of `pitch` in a row, `outs` of all groups; steps of y in elements.
extern "C" __global__ void __launch_bounds__(C::kThreads, 1) DNNARRAY_ENTRY(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap y_map,
    const __grid_constant__ TensorMap residual_map, const T* __restrict__ bias, const T* __restrict__ residual, R* __restrict__ y,
    long long rows, long long pitch, long long backwards, long long tiles_m, long long tiles_n, long long outs, long long y_n, long long y_d, long long y_h,
    long long y_w, long long d0, long long d1, long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2,
    double p, double q) {
  const Target<T, R> target = {bias, residual, y, static_cast<int>(outs), y_n, y_d, y_h, y_w, float(p), float(q)};
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const TmaWeight walk = {kSize, static_cast<int>(backwards), axes.d.window, axes.h.window, axes.w.window};
  const Arguments a = {target, walk, axes, rows, static_cast<int>(pitch)};
  const unsigned smem = (smem_address(smem_memory) + 1023) & ~1023u, slots = smem + kStages * kStage, first = slots + (kStaged ? Out::kBytes : 0);
  const Barriers barriers = {first, first + kStages * 8};
  const unsigned slot_barriers = first + 2 * kStages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(barriers.full + i * 8, 1);
      barrier_init(barriers.empty + i * 8, C::kConsumers);
    }
    if (Config::kResidual && kStaged) Out::init(slot_barriers);
    barrier_init_done();
  }
  __syncthreads();
  const long long tiles = tiles_m * tiles_n;
  const int part = static_cast<int>(threadIdx.x) / C::kGroup - 1;
  if (part < 0) {
    give_registers<C::kFewer>();
    if (threadIdx.x == 0) {
      prefetch_map(x);
      prefetch_map(weight);
      Ring<kStages> ring;
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        ask_tile(a, x, weight, C::place(i, tiles_m, tiles_n), smem, barriers, ring);
      }
    } else if (Config::kResidual && kStaged && threadIdx.x % 32 == 0 && threadIdx.x / 32 <= C::kConsumers) {
      const int whose = static_cast<int>(threadIdx.x) / 32 - 1;
      Out out(slots, slot_barriers, whose);
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        out.ask_residual(residual_map, C::place(i, tiles_m, tiles_n), a.target.outs, a);
      }
    }
    __syncwarp();
  } else {
    take_registers<C::kMore>();
    float sums[C::kMmas][32];
    const int stages = axes.d.window * axes.h.window * (kAcross > 1 ? 1 : axes.w.window);
    Ring<kStages> ring;
    Out out(slots, slot_barriers, part);
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const TmaPlace tile = C::place(i, tiles_m, tiles_n);
      multiply_tile(a, tile, sums, stages, part, smem, barriers, ring, out);
      if constexpr (kStaged) {
        out.write(a.target, y_map, sums, tile, a);
      } else {
        C::write_rows(a.target, sums, tile, part, a);
      }
    }
    stores_read<0>();
  }
}
