// Back from Winograd's domain: y = f(A m A^T + bias[k] + residual), m the 16 products of a tile and an output channel.
//
// A NaN or an infinity in the input, or a sum that overflows on the way, reaches all of a tile: where a result is not
// finite, the tile becomes NaN, and the definition is asked again (`direct.cu`, kRepair).
//
// Layout:  m is points x tiles x channels, or points x channels x tiles where not kLast; y and residual by the same
//          strides. A thread owns kVector channels of one tile of 2 x 2.
// Needs:   kVector > 1: kLast, channels a multiple of it, all other strides of y too, pointers aligned.
// Bound:   memory: m read once (four times y), y written once.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/core/strides.cuh"
#include "conv/winograd.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Activation = dnnarray::Identity;
  static constexpr bool kBias = false;
  static constexpr bool kResidual = false;
  static constexpr bool kLast = true;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long units;
  long long tiles;
  long long channels;
  int high;
  int wide;
  long long rows;
  long long columns;
  long long strides[4];
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_winograd_output_default
#endif

using namespace dnnarray;
constexpr int kVector = Config::kVector;
using Channels = Vec<float, kVector>;

// The tile of each channel.
__device__ __forceinline__ void tiles_of(const float* m, long long plane, float (&y)[kVector][kTile][kTile]) {
  float half[kVector][kTile][kPatch];  // columns transformed
#pragma unroll
  for (int j = 0; j < kPatch; ++j) {
    float column[kVector][kPatch];
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      const Channels reg = load<float, kVector>(m + (i * kPatch + j) * plane);
#pragma unroll
      for (int e = 0; e < kVector; ++e) column[e][i] = reg.at[e];
    }
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      float result[kTile];
      times<OutputTransform>(column[e], result);
#pragma unroll
      for (int i = 0; i < kTile; ++i) half[e][i][j] = result[i];
    }
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
#pragma unroll
    for (int i = 0; i < kTile; ++i) times<OutputTransform>(half[e][i], y[e][i]);
  }
}

__device__ __forceinline__ bool all_finite(const float (&y)[kTile][kTile]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
#pragma unroll
    for (int j = 0; j < kTile; ++j) zero = fmaf(y[i][j], 0.0f, zero);
  }
  return zero == 0;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ m, const float* __restrict__ bias, const float* __restrict__ residual,
                   float* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long tiles = a.tiles, channels = a.channels, rows = a.rows, columns = a.columns;
  const long long y_n = a.strides[0], y_c = a.strides[1], y_h = a.strides[2], y_w = a.strides[3];
  const long long unit = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (unit >= a.units) return;
  const Split inner = split(unit, static_cast<int>(Config::kLast ? channels / kVector : tiles));
  const long long tile = Config::kLast ? inner.quotient : inner.rest,
                  c = Config::kLast ? inner.rest * kVector : inner.quotient;
  const Split by_w = split(tile, a.wide), by_h = split(by_w.quotient, a.high);
  float sums[kVector][kTile][kTile];
  tiles_of(m + (Config::kLast ? tile * channels + c : c * tiles + tile), channels * tiles, sums);

  float added[kVector] = {};
  bool finite[kVector];
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    finite[e] = all_finite(sums[e]);
    if constexpr (Config::kBias) added[e] = bias[c + e];
  }
  const int h0 = by_h.rest * kTile, w0 = by_w.rest * kTile;
  const long long to = by_h.quotient * y_n + c * y_c + h0 * y_h + w0 * y_w;
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      if (h0 + i >= rows || w0 + j >= columns) continue;
      const long long at = to + i * y_h + j * y_w;
      Channels reg_residual{}, result;
      if constexpr (Config::kResidual) reg_residual = load<float, kVector>(residual + at);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float value =
            Config::Activation::forward(sums[e][i][j] + added[e] + reg_residual.at[e], float(a.p), float(a.q));
        result.at[e] = finite[e] ? value : quiet_nan(0.0f);
      }
      store(y + at, result);
    }
  }
}
