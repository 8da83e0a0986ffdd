// The taps of each place of a grid: the pixel of each, `pixels` where it lies outside of the image, and its weight.
//
// Layout:  grid (N, *places, kRank), C order; pixels and weights (N, places, taps), the last axis fastest along the width. A thread owns a place.
// Bound:   memory: the grid read once, 8 bytes a tap written.

#include "dnnarray/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY grid_sample_taps_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = Axis<Config::kMode, Config::kPadding, Config::kCorners, A>;
constexpr int kMode = Config::kMode, kDeep = Config::kRank == 3 ? kMode : 1, kTaps = kDeep * kMode * kMode;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grid, unsigned* __restrict__ pixels, A* __restrict__ weights, long long places, long long depth,
                   long long height, long long width) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= places) return;
  const T* at = grid + own * Config::kRank;
  const Place across(widen(at[0]), width), down(widen(at[1]), height);
  const Place deep(Config::kRank == 3 ? widen(at[Config::kRank - 1]) : A(0), Config::kRank == 3 ? depth : 1);
#pragma unroll
  for (int k = 0; k < kDeep; ++k) {
#pragma unroll
    for (int i = 0; i < kMode; ++i) {
#pragma unroll
      for (int j = 0; j < kMode; ++j) {
        A weight = down.weight[i] * across.weight[j];
        bool inside = down.inside[i] && across.inside[j];
        long long pixel = down.index[i] * width + across.index[j];
        if (Config::kRank == 3) weight *= deep.weight[k], inside = inside && deep.inside[k], pixel += deep.index[k] * height * width;
        const long long tap = own * kTaps + (k * kMode + i) * kMode + j;
        pixels[tap] = static_cast<unsigned>(inside ? pixel : depth * height * width);
        weights[tap] = weight;
      }
    }
  }
}
