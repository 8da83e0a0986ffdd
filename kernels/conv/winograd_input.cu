// Images in Winograd's domain: v[point, tile, c] = (B d B^T)[point], d the 6 x 6 patch of a channel around a tile of 4 x 4 outputs.
//
// Layout:  x by strides; v is points x tiles x (kCopies, channels), or points x (kCopies, channels) x tiles where not kLast. A thread owns
//          kVector channels of one tile. With three copies, v holds the upper part, the lower part and the upper part again (`Parts`): what a
//          product of upper by upper, lower by upper and upper by lower parts reads as one long sum.
// Needs:   kVector > 1: kLast, channels a multiple of it, all other strides of x too, pointers aligned.
// Bound:   memory: x once (2.25 times through the caches), v written once: 2.25 times x for each copy.

#include "dnnarray/window.cuh"
#include "dnnarray/winograd.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr bool kLast = true;
  static constexpr int kCopies = 1;
  static constexpr int kVector = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_winograd_input_default
#endif

using namespace dnnarray;
constexpr int kVector = Config::kVector, kCopies = Config::kCopies;
using Channels = Vec<float, kVector>;

__device__ __forceinline__ void put(float* v, const Channels& value, long long copy) {
  if constexpr (kCopies == 1) {
    store(v, value);
  } else {
    Channels high, low;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const Parts parts = parts_of(value.at[j]);
      high.at[j] = parts.high;
      low.at[j] = parts.low;
    }
    store(v, high);
    store(v + copy, low);
    store(v + 2 * copy, high);
  }
}

// `x` begins at the first image, `high` and `wide` are tiles of an image, `copy` and `plane` the distances between copies and points.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ x, float* __restrict__ v, long long units, long long tiles, long long channels, long long high,
                   long long wide, long long rows, long long columns, long long before_h, long long before_w, long long x_n, long long x_c,
                   long long x_h, long long x_w) {
  const long long unit = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (unit >= units) return;
  const Split inner = split(unit, static_cast<int>(Config::kLast ? channels / kVector : tiles));
  const long long tile = Config::kLast ? inner.quotient : inner.rest, c = Config::kLast ? inner.rest * kVector : inner.quotient;
  const Split by_w = split(tile, static_cast<int>(wide)), by_h = split(by_w.quotient, static_cast<int>(high));
  const int h0 = static_cast<int>(by_h.rest * kTile - before_h), w0 = static_cast<int>(by_w.rest * kTile - before_w);
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
  const long long copy = Config::kLast ? channels : channels * tiles, plane = kCopies * channels * tiles;
  float* to = v + (Config::kLast ? tile * kCopies * channels + c : c * tiles + tile);
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
      put(to + (i * kPatch + j) * plane, value, copy);
    }
  }
}
