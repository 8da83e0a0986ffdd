// Convolution of stride 1 as one matrix product whose left operand stays in shared memory for all taps of a plane: y[m, k] = f(sum over taps and c
// of x[m + tap, c] * w[k, tap, c] + bias[k] + residual[m, k]).
//
// Layout:  x channels-last in memory, behind a tensor map of windows of one pixel whose corners make a raster of each plane: rows of `pitch`
//          places, `height` rows, zeros where the plane ends, shared by what stands on either side of them. Then every tap along the last two axes
//          is a shift, and kTileM neighbouring places of the output need kTileM + reach places of the input, one box. Places behind the end of a
//          row or a plane are computed for nothing. w (groups K, window, C) behind a tiled map; kTransposed: the gradient of the input from the
//          forward's weight, whose dense channels are those of the result here.
//          A block takes tiles of kTileM places x kTileN channels, one after another. One thread of the first warpgroup asks for the input of 64
//          channels and a tap along the first axis (two buffers) and the weights of the taps there (a ring of kStages). The others multiply, each
//          some of the tile's rows, and write them from registers, since the copy engine stores no places outside of an array.
// Needs:   sm_90a; channels of a group multiples of 64 where there are several groups; strides of x, w and y multiples of 16 bytes; padding less
//          than the window's reach.
// Bound:   the matrix units. Sums in float32.

#include "dnnarray/activation.cuh"
#include "dnnarray/conv_raster.cuh"

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
  static constexpr int kAxes = 2;
};
#define DNNARRAY_ENTRY conv_implicit_tma_halo_sm90_default
#endif

using namespace dnnarray;
using C = TmaTile<Config>;
using T = Config::Element;
using R = Config::Result;
constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kStages = Config::kStages;

extern __shared__ char smem_memory[];

using Arguments = Raster<Config>;
using Shared = RasterShared<Config>;

// `planes` inputs, one after another.
__device__ __forceinline__ void multiply_tile(const Arguments& a, const TmaPlace& tile, int planes, float (&sums)[C::kMmas][kTileN / 2], int part,
                                              const Shared& smem, Ring<2>& inputs, Ring<kStages>& ring) {
  const C::Bias bias(a.target, tile);
  C::clear(sums);
  RasterRelease<Config> waiting = walk_raster(a, planes, part * C::kMmas * 64 * C::kRow, smem, inputs, ring,
                                              [&](unsigned places, unsigned weight) { C::multiply(sums, places, weight); });
  C::finish(sums);
  waiting.run();
  bias.add(sums);
}

// `channels` of the sum and `outs` of the result are of one group; steps of y in elements.
extern "C" __global__ void __launch_bounds__(C::kThreads, 1) DNNARRAY_ENTRY(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const T* __restrict__ bias, const T* __restrict__ residual,
    R* __restrict__ y, long long images, long long pitch, long long height, long long reach, long long channels, long long backwards,
    long long tiles_m, long long tiles_n, long long groups, long long outs, long long y_n, long long y_d, long long y_h, long long y_w, long long d0,
    long long d1, long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2, double p, double q) {
  const Target<T, R> target = {bias, residual, y, static_cast<int>(outs), y_n, y_d, y_h, y_w, float(p), float(q)};
  const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
  const TmaWeight walk = {static_cast<int>(channels), static_cast<int>(backwards), axes.d.window, axes.h.window, axes.w.window};
  const Arguments a = {target, walk, axes, images, static_cast<int>(pitch), static_cast<int>(height), static_cast<int>(reach)};
  const Shared smem((smem_address(smem_memory) + 1023) & ~1023u, a.reach);
  if (threadIdx.x == 0) smem.init(C::kConsumers);
  __syncthreads();
  const int part = static_cast<int>(threadIdx.x) / C::kGroup - 1;
  const long long tiles = tiles_m * tiles_n * groups;
  Ring<2> inputs;
  Ring<kStages> ring;
  if (part < 0) {
    give_registers<C::kFewer>();
    if (threadIdx.x == 0) {
      prefetch_map(x);
      prefetch_map(weight);
      for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
        ask_raster(a, x, weight, C::place(i, tiles_m, tiles_n), smem, inputs, ring);
      }
    }
    __syncwarp();
  } else {
    take_registers<C::kMore>();
    float sums[C::kMmas][kTileN / 2];
    const int planes = axes.d.window * ((a.weight.channels + C::kTileK - 1) / C::kTileK);
    for (long long i = blockIdx.x; i < tiles; i += gridDim.x) {
      const TmaPlace tile = C::place(i, tiles_m, tiles_n);
      multiply_tile(a, tile, planes, sums, part, smem, inputs, ring);
      C::write_rows(a.target, sums, tile, part, a);
    }
  }
}
