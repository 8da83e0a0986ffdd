// Convolution of stride 1 and few output channels as one matrix product that is turned round: y[m, k] = f(sum over taps and c of w[k, tap, c] *
// x[m + tap, c] + bias[k]) with the channels of the result as rows, so that each piece of the weight meets many pixels in shared memory.
//
// Layout:  as implicit_tma_halo_sm90.cu, whose raster makes every tap of a plane a shift: x behind a tensor map of windows of one pixel, w (groups
//          K, window, C) behind a tiled one; kTransposed: the gradient of the input from the forward's weight, whose dense channels are those
//          of the result here. A block takes tiles of kTileM places x 64 channels, one after another. One thread of the first warpgroup asks for
//          the input of 64 channels and a tap along the first axis (two buffers) and the weights of the taps there (a ring of kStages). The
//          other two multiply, each half of the places, and write them from registers, whose 8 x 8 pieces the warp turns round again.
// Needs:   sm_90a; channels of a group multiples of 64 where there are several groups; strides of x, w and y multiples of 16 bytes; padding less
//          than the window's reach.
// Bound:   the matrix units. Sums in float32.

#include "dnnarray/activation.cuh"
#include "dnnarray/conv_raster.cuh"
#include "dnnarray/group_product_192.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Relu;
  static constexpr bool kBias = true;
  static constexpr bool kResidual = false;
  static constexpr int kTileM = 512;
  static constexpr int kTileN = 64;
  static constexpr int kStages = 8;
  static constexpr bool kTransposed = false;
  static constexpr int kAxes = 2;
};
#define DNNARRAY_ENTRY conv_implicit_tma_turned_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using T = Config::Element;
using R = Config::Result;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;
constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * C::kGroup, kWidth = kTileM / kConsumers;  // places of a warpgroup
constexpr int kFewer = 56, kMore = 224;  // registers of asking and of multiplying threads
static_assert(kTileN == 64 && sizeof(R) == 2 && !Config::kResidual, "a product's rows are 64 channels; a residual would come too late");

extern __shared__ char smem_memory[];

using Arguments = Raster<Config>;
using Shared = RasterShared<Config>;

// The products of one tap: 64 channels by the places of this warpgroup.
__device__ __forceinline__ void multiply(float (&sums)[kWidth / 2], unsigned places, unsigned weight) {
  wgmma_fence();
  const unsigned long long a = C::kTurned ? transposed_panel(weight, C::kTileK * C::kRow) : panel(weight), b = panel(places);
#pragma unroll
  for (int k = 0; k < 4; ++k) Wgmma<T, C::kTurned, false, kWidth>::run(sums, a + (C::kTurned ? 128 : 2) * k, b + 2 * k);
  wgmma_commit();
}

// `planes` inputs, one after another.
__device__ __forceinline__ void multiply_tile(const Arguments& a, int planes, float (&sums)[kWidth / 2], int part, const Shared& smem,
                                              Ring<2>& inputs, Ring<kStages>& ring) {
#pragma unroll
  for (int j = 0; j < kWidth / 2; ++j) sums[j] = 0;
  RasterRelease<Config> waiting = walk_raster(a, planes, part * kWidth * C::kRow, smem, inputs, ring,
                                              [&](unsigned places, unsigned weight) { multiply(sums, places, weight); });
  wgmma_wait<0>();
  hold(sums);
  waiting.run();
}

// 16 channels of 16 places, of which the thread's sums are two channels of two pairs of places: 16 bytes of a place for each lane, four neighbours
// two places 8 apart. `from` is where the channels of the place at lane / 4 begin, `behind` those of the one 8 further, or -1.
__device__ __forceinline__ void write_piece(const Arguments& a, const float* sums, const float (&bias)[2], int channel, long long from,
                                            long long behind) {
  const int q = threadIdx.x % 4;
  unsigned pieces[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // channels from 8 (i % 2) on, places from 8 (i / 2) on
    float v[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) v[e] = Config::Activation::forward(sums[i / 2 * 4 + i % 2 * 2 + e] + bias[i % 2], a.target.p, a.target.q);
    pieces[i] = turned(narrow_pair(v[0], v[1], R()));
  }
  transpose_pairs(pieces);
  const long long at = q < 2 ? from : behind;
  const Vec<unsigned, 4> row = {{pieces[0], pieces[1], pieces[2], pieces[3]}};
  if (at >= 0 && channel + q % 2 * 8 < a.target.outs) store(reinterpret_cast<unsigned*>(a.target.y + at + channel + q % 2 * 8), row);
}

__device__ __forceinline__ void write_tile(const Arguments& a, const float (&sums)[kWidth / 2], const TmaPlace& tile, int part) {
  const int lane = threadIdx.x % 32, channel = tile.n + threadIdx.x % C::kGroup / 32 * 16, group = tile.group * a.target.outs;
  float bias[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int own = channel + lane / 4 + i * 8;
    if (Config::kBias && own < a.target.outs) bias[i] = widen(a.target.bias[group + own]);
  }
  WindowPlace place = a.where(tile.m + part * kWidth + lane / 4);
#pragma unroll
  for (int j = 0; j < kWidth / 16; ++j) {
    const long long from = a.at(place);
    a.advance(place, 8);
    const long long behind = a.at(place);
    a.advance(place, 8);
    write_piece(a, sums + j * 8, bias, channel, from < 0 ? from : from + group, behind < 0 ? behind : behind + group);
  }
}

// `channels` of the sum and `outs` of the result are of one group; steps of y in elements.
extern "C" __global__ void __launch_bounds__(kThreads, 1) DNNARRAY_ENTRY(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const T* __restrict__ bias, const T* __restrict__ residual,
    R* __restrict__ y, long long images, long long pitch, long long height, long long reach, long long channels, long long backwards,
    long long tiles_m, long long tiles_n, long long groups, long long outs, long long y_n, long long y_d, long long y_h, long long y_w, long long d0,
    long long d1, long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2, double p, double q) {
  const Target<T, R> target = {bias, residual, y, static_cast<int>(outs), y_n, y_d, y_h, y_w, float(p), float(q)};
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const TmaWeight walk = {static_cast<int>(channels), static_cast<int>(backwards), axes.d.window, axes.h.window, axes.w.window};
  const Arguments a = {target, walk, axes, images, static_cast<int>(pitch), static_cast<int>(height), static_cast<int>(reach)};
  const Shared smem((smem_address(smem_memory) + 1023) & ~1023u, a.reach);
  if (threadIdx.x == 0) smem.init(kConsumers);
  __syncthreads();
  const int part = static_cast<int>(threadIdx.x) / C::kGroup - 1;
  const long long tiles = tiles_m * tiles_n * groups;
  Ring<2> inputs;
  Ring<kStages> ring;
  if (part < 0) {
    give_registers<kFewer>();
    if (threadIdx.x == 0) {
      prefetch_map(x);
      prefetch_map(weight);
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        ask_raster(a, x, weight, C::place(i, tiles_m, tiles_n), smem, inputs, ring);
      }
    }
    __syncwarp();
  } else {
    take_registers<kMore>();
    float sums[kWidth / 2];
    const int planes = axes.d.window * ((a.weight.channels + C::kTileK - 1) / C::kTileK);
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      multiply_tile(a, planes, sums, part, smem, inputs, ring);
      write_tile(a, sums, C::place(i, tiles_m, tiles_n), part);
    }
  }
}
