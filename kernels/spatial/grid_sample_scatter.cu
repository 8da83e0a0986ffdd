// The gradient of grid_sample by x: each output's gradient goes to its taps by their weights.
//
// Layout:  as grid_sample, with one channel at a time: g and the sums by strides, the sums in the memory order of x.
// Bound:   atomics in L2, one for each tap of each output.

#include "dnnarray/sampling.cuh"
#include "dnnarray/scatter.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr int kMode = dnnarray::kBilinear;
  static constexpr int kPadding = dnnarray::kZeros;
  static constexpr bool kCorners = false;
  static constexpr int kRank = 2;
  static constexpr bool kChannelsLast = false;
  static constexpr bool kFixed = false;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY grid_sample_scatter_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = GridPlace<T, Config::kRank, Config::kMode, Config::kPadding, Config::kCorners>;

template <typename Sums>
__device__ __forceinline__ void scatter(const Sums& sums, A g, long long base, const Place& place, const Strides& x) {
  Place::each([&](int k, int i, int j) {
    if (place.inside(k, i, j)) sums.add(base + place.pixel(k, i, j, x.space[0], x.space[1], x.space[2]), g * place.weight(k, i, j));
  });
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ g, const T* __restrict__ grid, void* sums, unsigned* flags, const unsigned long long* largest,
                   long long bits, DNNARRAY_SHARES, long long depth, long long height, long long width,
                   long long x_n, long long x_c, long long x_d, long long x_h, long long x_w,
                   long long y_n, long long y_c, long long y_o, long long y_p, long long y_q) {
  using Share = PlaceAndChannels<Config::kChannelsLast>;
  const long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (index >= threads) return;
  const Share mine(index, DNNARRAY_SHARES_VALUES);
  const Place place(grid + mine.own * Config::kRank, depth, height, width);
  const Strides x{x_n, x_c, {x_d, x_h, x_w}};
  const T* source = g + mine.n * y_n + mine.slice * y_o + mine.row * y_p + mine.column * y_q;
  for (long long c = mine.first; c < mine.end; ++c) {
    const A value = widen(source[c * y_c]);
    const long long base = mine.n * x.n + c * x.c;
    if constexpr (Config::kFixed) {
      const FixedSums fixed{static_cast<unsigned long long*>(sums), flags, FixedScale(largest, bits).up};
      scatter(fixed, value, base, place, x);
    } else {
      scatter(FloatSums<A>{static_cast<A*>(sums)}, value, base, place, x);
    }
  }
}
