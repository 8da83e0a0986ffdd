// The gradient of grid_sample by x: each output's gradient goes to its taps by their weights.
//
// Layout:  as grid_sample, with one channel at a time: g and the sums by strides, the sums in the memory order of x.
// Bound:   atomics in L2, one for each tap of each output.

#include "spatial/sampling.cuh"
#include "spatial/scatter.cuh"

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
struct Arguments {
  long long bits;
  dnnarray::Shares shares;
  long long extents[3];
  long long x_strides[5];
  long long y_strides[5];
};
#define DNNARRAY_ENTRY spatial_grid_sample_scatter_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Place = GridPlace<T, Config::kRank, Config::kMode, Config::kPadding, Config::kCorners>;

template <typename Sums>
__device__ __forceinline__ void scatter(const Sums& sums, A g, long long base, const Place& place, const Strides& x) {
  Place::each([&](int k, int i, int j) {
    if (place.inside(k, i, j))
      sums.add(base + place.pixel(k, i, j, x.space[0], x.space[1], x.space[2]), g * place.weight(k, i, j));
  });
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ grid, void* sums, unsigned* flags,
                   const unsigned long long* largest, const __grid_constant__ Arguments a) {
  using Share = PlaceAndChannels<Config::kChannelsLast>;
  const long long index = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (index >= a.shares.threads) return;
  const Share mine(index, a.shares);
  const Place place(grid + mine.own * Config::kRank, a.extents[0], a.extents[1], a.extents[2]);
  const Strides x{a.x_strides[0], a.x_strides[1], {a.x_strides[2], a.x_strides[3], a.x_strides[4]}};
  const T* source = grad + mine.n * a.y_strides[0] + mine.slice * a.y_strides[2] + mine.row * a.y_strides[3] +
                    mine.column * a.y_strides[4];
  for (long long c = mine.first; c < mine.end; ++c) {
    const A value = widen(source[c * a.y_strides[1]]);
    const long long base = mine.n * x.n + c * x.c;
    if constexpr (Config::kFixed) {
      const FixedSums fixed{static_cast<unsigned long long*>(sums), flags, FixedScale(largest, a.bits).up};
      scatter(fixed, value, base, place, x);
    } else {
      scatter(FloatSums<A>{static_cast<A*>(sums)}, value, base, place, x);
    }
  }
}
