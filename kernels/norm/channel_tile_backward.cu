// The gradient of batch norm by saved statistics in one launch that reads x and grad once, of channels that fit the
// registers of a block: dx = rstd * weight * (grad - average(grad) - rstd^2 * average(grad * (x - mean)) * (x - mean)),
// dweight = rstd * sum(grad * (x - mean)), dbias = sum(grad).
//
// Layout:  as kernels/norm/channel_tile.cu: a thread has the same kVector columns of each of its pieces.
// Needs:   runs and columns multiples of kVector elements; at most kVectors pieces a thread, kMost channels a block;
//          pointers aligned to kVector elements.
// Bound:   memory: x and grad read once, dx written once. Sums in the arithmetic type; threads meet in shared memory,
//          in a fixed order.

#include "norm/channel_tile.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  static constexpr int kVector = 8;
  static constexpr int kVectors = 7;
  static constexpr int kThreads = 512;
};
struct Arguments {
  const void* weight;
  const void* mean_of;
  const void* rstd_of;
  void* dweight;
  void* dbias;
  long long wide;
  long long pieces;
  long long columns;
  long long tile;
  long long width_of;
  long long width_divisor;
  double share;
};
#define DNNARRAY_ENTRY norm_channel_tile_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads,
              kWarps = kThreads / kWarp;
using Tile = ColumnTile<A, kVector, kThreads>;

// Of a channel: dx = grad * scale - average - slope * (x - mean).
struct Known {
  A mean, scale, average, slope;
};

// Null: what is absent or not asked for. `wide` has a bit for each of weight, bias, mean and rstd; `tile` of the
//       `columns` of a piece go to a block.
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ x, T* __restrict__ dx,
                   const __grid_constant__ Arguments a) {
  const void *const weight = a.weight, *const mean_of = a.mean_of, *const rstd_of = a.rstd_of;
  void *const dweight = a.dweight, *const dbias = a.dbias;
  const long long wide = a.wide, pieces = a.pieces, columns = a.columns, tile = a.tile, width_of = a.width_of,
                  width_divisor = a.width_divisor;
  const double share = a.share;
  __shared__ __align__(16) Tile::Tables smem;
  __shared__ Known smem_known[Tile::kMost];
  __shared__ A smem_rstd[Tile::kMost];
  const Tile place(pieces, columns, tile, Divisor(width_of, width_divisor));
  Wordwise<T, kVector> of_x[kVectors], of_grad[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    of_x[k] = of_grad[k] = {};
    if (place.there(k))
      of_x[k] = load_wordwise<T, kVector>(x + place.at(k)), of_grad[k] = load_wordwise<T, kVector>(grad + place.at(k));
  }
  const Parameter<T> w = {weight, (wide & 1) != 0}, mean = {mean_of, (wide & 4) != 0},
                     rstd = {rstd_of, (wide & 8) != 0};
  if (threadIdx.x < place.channels) {  // while x and grad are on their way
    const int channel = place.first_channel + static_cast<int>(threadIdx.x);
    const A root = rstd.at(channel, A(1));
    smem_rstd[threadIdx.x] = root,
    smem_known[threadIdx.x] = {mean.at(channel, A(0)), root * w.at(channel, A(1)), A(0), A(0)};
  }
  __syncthreads();

  A sums[2][kVector] = {}, means[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) means[v] = smem_known[place.channel(v)].mean;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!place.there(k)) break;
    A values[kVector], g[kVector];
    widen_all(values, of_x[k]);
    widen_all(g, of_grad[k]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      sums[0][v] += g[v];
      sums[1][v] += g[v] * (values[v] - means[v]);
    }
  }
  place.template put<2>(smem, sums);
#pragma unroll 1
  for (int s = threadIdx.x / kWarp; s < place.channels; s += kWarps) {
    A all[2];
    place.template over<2>(all, smem, s);
    if (threadIdx.x % kWarp != 0) continue;
    const A root = smem_rstd[s], scale = smem_known[s].scale;
    smem_known[s].average = rounded_product(all[0], scale) * A(share);
    smem_known[s].slope = scale * root * root * all[1] * A(share);
    if (dweight != nullptr) put<T>(dweight, w.wide, place.first_channel + s, all[1] * root);
    if (dbias != nullptr) put<T>(dbias, (wide & 2) != 0, place.first_channel + s, all[0]);
  }
  __syncthreads();

  Known known[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) known[v] = smem_known[place.channel(v)];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!place.there(k)) break;
    A values[kVector], g[kVector];
    widen_all(values, of_x[k]);
    widen_all(g, of_grad[k]);
#pragma unroll
    for (int v = 0; v < kVector; ++v)
      values[v] = rounded_product(g[v], known[v].scale) - known[v].average -
                  known[v].slope * (values[v] - known[v].mean);  // 0 for a single value
    store(dx + place.at(k), narrow_all<T, kVector>(values));
  }
}
