// Images in Winograd's domain: v[point, tile, c] = (B d B^T)[point], d the 4 x 4 patch of a channel around a tile of 2
// x 2 outputs.
//
// Layout:  x by strides; v is points x tiles x channels, or points x channels x tiles where not kLast. A thread owns
//          kVector channels of one tile.
// Needs:   kVector > 1: kLast, channels a multiple of it, all other strides of x too, pointers aligned.
// Bound:   memory: x once (four times through the caches), v written once: four times x.

#include "dnnarray/core/strides.cuh"
#include "conv/winograd.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
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
  int before_h;
  int before_w;
  long long strides[4];
};
#define DNNARRAY_ENTRY conv_winograd_input_default
#endif

using namespace dnnarray;
constexpr int kVector = Config::kVector;
using Channels = Vec<float, kVector>;

// `x` begins at the first image, `high` and `wide` are tiles of an image.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ x, float* __restrict__ v, const __grid_constant__ Arguments a) {
  const long long tiles = a.tiles, channels = a.channels, rows = a.rows, columns = a.columns;
  const long long x_n = a.strides[0], x_c = a.strides[1], x_h = a.strides[2], x_w = a.strides[3];
  const long long unit = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (unit >= a.units) return;
  const Split inner = split(unit, static_cast<int>(Config::kLast ? channels / kVector : tiles));
  const long long tile = Config::kLast ? inner.quotient : inner.rest,
                  c = Config::kLast ? inner.rest * kVector : inner.quotient;
  const Split by_w = split(tile, a.wide), by_h = split(by_w.quotient, a.high);
  const int h0 = by_h.rest * kTile - a.before_h, w0 = by_w.rest * kTile - a.before_w;
  const float* from = x + by_h.quotient * x_n + c * x_c + h0 * x_h + w0 * x_w;

  float half[kVector][kPatch][kPatch];  // rows transformed: [row of the patch][column of the result]
#pragma unroll
  for (int i = 0; i < kPatch; ++i) {
    float row[kVector][kPatch];
#pragma unroll
    for (int j = 0; j < kPatch; ++j) {
      const bool inside = static_cast<unsigned>(h0 + i) < rows && static_cast<unsigned>(w0 + j) < columns;
      const Channels reg = inside ? load<float, kVector>(from + i * x_h + j * x_w) : Channels{};
#pragma unroll
      for (int e = 0; e < kVector; ++e) row[e][j] = reg.at[e];
    }
#pragma unroll
    for (int e = 0; e < kVector; ++e) times<InputTransform>(row[e], half[e][i]);
  }
  float* to = v + (Config::kLast ? tile * channels + c : c * tiles + tile);
#pragma unroll
  for (int j = 0; j < kPatch; ++j) {
    float result[kVector][kPatch];
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      float column[kPatch];
#pragma unroll
      for (int i = 0; i < kPatch; ++i) column[i] = half[e][i][j];
      times<InputTransform>(column, result[e]);
    }
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      Channels value;
#pragma unroll
      for (int e = 0; e < kVector; ++e) value.at[e] = result[e][i];
      store(to + (i * kPatch + j) * channels * tiles, value);
    }
  }
}
