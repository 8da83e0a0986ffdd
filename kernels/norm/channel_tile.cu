// Batch norm in one launch that reads x once, of channels that fit the registers of a block: y = act((x - mean) * scale
// + shift + residual).
//
// Layout:  pieces of `run` neighbouring elements: the images of some channels in each batch index, or (channels last)
//          some channels in each row. kThreads / (vectors of a piece) pieces are worked on at a time; a thread has the
//          same kVector columns of every one of its pieces, so that nothing about a column is looked up twice. `width`
//          columns are of a channel, whole ones of a block.
// Needs:   runs and columns multiples of kVector elements; at most kVectors pieces a thread, kMost channels a block;
//          pointers aligned to kVector elements.
// Bound:   memory: x and residual read once, y written once. Sums of a column in the arithmetic type: first for the
//          mean, then of the distances from it, whose own sum corrects it; threads meet in shared memory, in a fixed
//          order.

#include "dnnarray/core/activation.cuh"
#include "norm/channel_tile.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::float16_t;
  using Activation = dnnarray::Identity;
  static constexpr bool kResidual = false;
  static constexpr int kVector = 8;
  static constexpr int kVectors = 13;
  static constexpr int kThreads = 256;
};
struct Arguments {
  const void* weight;
  const void* bias;
  const void* running_mean;
  const void* running_var;
  dnnarray::arithmetic_t<Config::Element>* mean_of;
  dnnarray::arithmetic_t<Config::Element>* rstd_of;
  void* next_mean;
  void* next_var;
  long long wide;
  long long pieces;
  long long columns;
  long long tile;
  long long width_of;
  long long width_divisor;
  double count;
  double share;
  double momentum;
  double eps;
  double p;
  double q;
};
#define DNNARRAY_ENTRY norm_channel_tile_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kVectors = Config::kVectors, kThreads = Config::kThreads,
              kWarps = kThreads / kWarp;
using Tile = ColumnTile<A, kVector, kThreads>;

// What a channel becomes: its mean, what rounding took from that, and rstd.
struct Known {
  A mean, rest, rstd;
};

// Null: what is absent or not asked for. `wide` has a bit for each of weight, bias, running mean and variance; `tile`
//       of the `columns` of a piece go to a block.
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y,
                   const __grid_constant__ Arguments a) {
  const void *const weight = a.weight, *const bias = a.bias, *const running_mean = a.running_mean,
                    *const running_var = a.running_var;
  A *const mean_of = a.mean_of, *const rstd_of = a.rstd_of;
  void *const next_mean = a.next_mean, *const next_var = a.next_var;
  const long long wide = a.wide, pieces = a.pieces, columns = a.columns, tile = a.tile, width_of = a.width_of,
                  width_divisor = a.width_divisor;
  const double count = a.count, share = a.share, momentum = a.momentum, eps = a.eps;
  __shared__ __align__(16) Tile::Tables smem;
  __shared__ Known smem_known[Tile::kMost];
  __shared__ A smem_weight[Tile::kMost], smem_bias[Tile::kMost];
  const Tile place(pieces, columns, tile, Divisor(width_of, width_divisor));
  Wordwise<T, kVector> held[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    held[k] = {};
    if (place.there(k)) held[k] = load_wordwise<T, kVector>(x + place.at(k));
  }

  const Parameter<T> absent = {nullptr, false}, w = {weight, (wide & 1) != 0}, b = {bias, (wide & 2) != 0};
  if (threadIdx.x < place.channels) {  // while x is on its way
    const int channel = place.first_channel + static_cast<int>(threadIdx.x);
    smem_weight[threadIdx.x] = w.at(channel, A(1)), smem_bias[threadIdx.x] = b.at(channel, A(0));
  }

  A sums[2][kVector] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    A of_x[kVector];
    widen_all(of_x, held[k]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sums[0][v] += of_x[v];
  }
  place.template put<1>(smem, sums);
  const int warp = threadIdx.x / kWarp;
  A all[2];
#pragma unroll 1
  for (int s = warp; s < place.channels; s += kWarps) {
    place.template over<1>(all, smem, s);
    if (threadIdx.x % kWarp == 0) smem_known[s].mean = all[0] * A(share);
  }
  __syncthreads();

  A origin[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    origin[v] = smem_known[place.channel(v)].mean;
    sums[0][v] = sums[1][v] = A(0);
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!place.there(k)) break;
    A of_x[kVector];
    widen_all(of_x, held[k]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const A distance = of_x[v] - origin[v];
      sums[0][v] += distance;
      sums[1][v] += distance * distance;
    }
  }
  place.template put<2>(smem, sums);
  const Statistic<T> statistic = {absent,
                                  absent,
                                  absent,
                                  {running_mean, (wide & 4) != 0},
                                  {running_var, (wide & 8) != 0},
                                  mean_of,
                                  rstd_of,
                                  next_mean,
                                  next_var,
                                  count,
                                  share,
                                  momentum,
                                  eps};
#pragma unroll 1
  for (int s = warp; s < place.channels; s += kWarps) {
    place.template over<2>(all, smem, s);
    const auto found = statistic.find({double(all[0]), double(all[1])}, double(smem_known[s].mean),
                                      place.first_channel + s, threadIdx.x % kWarp == 0);
    const A near = A(found.mean);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) smem_known[s] = {near, A(found.mean - double(near)), found.rstd};
  }
  __syncthreads();

  A mean[kVector], scale[kVector], shift[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const int channel = place.channel(v);
    const Known known = smem_known[channel];
    mean[v] = known.mean, scale[v] = known.rstd * smem_weight[channel],
    shift[v] = smem_bias[channel] - known.rest * scale[v];
    if (sizeof(T) == 2)
      shift[v] -= mean[v] * scale[v],
          mean[v] = A(0);  // what is rounded to a half type has digits to spare for the mean in the shift
  }
  const A p = A(a.p), q = A(a.q);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!place.there(k)) break;
    A values[kVector], more[kVector] = {};
    widen_all(values, held[k]);
    if constexpr (Config::kResidual) widen_all(more, load_wordwise<T, kVector>(residual + place.at(k)));
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const A distance = sizeof(T) == 2 ? values[v] : values[v] - mean[v];
      const A z = distance * scale[v] + shift[v];
      values[v] = Config::Activation::forward(Config::kResidual ? z + more[v] : z, p, q);
    }
    store(y + place.at(k), narrow_all<T, kVector>(values));
  }
}
