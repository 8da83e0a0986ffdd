// y = x with its axes permuted, where the fastest axis of y goes through x in steps of kPlaces elements and a few other
// axes of y through those between, as where pixels and channels are shuffled: neighbours in x are dealt out to kPlaces
// places of y, from which each is a run.
//
// Layout:  y is dense. A thread reads kPlaces vectors of kVector elements that follow one another in x, and writes as
//          many, one at each of the places, which lie `place*` elements behind the first. It finds its own vectors
//          along the other axes of y, counted from the slowest.
// Needs:   x and y aligned to kVector elements, all steps and places multiples of kVector.
// Bound:   memory: x read once, y written once.

#include "spatial/walk.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kBytes = 2;
  static constexpr int kRank = 4;
  static constexpr int kVector = 8;
  static constexpr int kPlaces = 2;
  static constexpr bool kShort = true;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long size;
  unsigned long long words[18];
  long long places[8];
};
#define DNNARRAY_ENTRY spatial_deal_default
#endif

using namespace dnnarray;
using T = Unit<Config::kBytes>::type;
using I = Count<Config::kShort>::type;
constexpr int kVector = Config::kVector, kPlaces = Config::kPlaces, kRank = Config::kRank;
using Run = Vec<T, kVector>;

// Axis k of those that count, from the slowest to the fastest, is told by three words: two of a Walk, the last one in
// vectors, and the distance of neighbours in y.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= a.size) return;
  I from = 0, to = 0, left = static_cast<I>(own);
#pragma unroll
  for (int k = kRank - 1; k >= 0; --k) {
    const Walk<Config::kShort> walk(a.words[3 * k], a.words[3 * k + 1]);
    const I at = k > 0 ? walk.split_off(left) : left;
    from += at * walk.step;
    to += at * static_cast<I>(a.words[3 * k + 2]);
  }
  Run read[kPlaces], written[kPlaces];
#pragma unroll
  for (int r = 0; r < kPlaces; ++r) read[r] = load<T, kVector>(x + from + r * kVector);
#pragma unroll
  for (int e = 0; e < kPlaces * kVector; ++e) written[e % kPlaces].at[e / kPlaces] = read[e / kVector].at[e % kVector];
#pragma unroll
  for (int r = 0; r < kPlaces; ++r) store(y + to + static_cast<I>(a.places[r]), written[r]);
}
