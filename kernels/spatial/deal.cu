// y = x with its axes permuted, where the fastest axis of y goes through x in steps of kPlaces elements and a few other axes of y through those
// between, as where pixels and channels are shuffled: neighbours in x are dealt out to kPlaces places of y, from which each is a run.
//
// Layout:  y is dense. A thread reads kPlaces vectors of kVector elements that follow one another in x, and writes as many, one at each of the
//          places, which lie `place*` elements behind the first. It finds its own vectors along the other axes of y, counted from the slowest.
// Needs:   x and y aligned to kVector elements, all steps and places multiples of kVector.
// Bound:   memory: x read once, y written once.

#include "dnnarray/walk.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kBytes = 2;
  static constexpr int kRank = 4;
  static constexpr int kVector = 8;
  static constexpr int kPlaces = 2;
  static constexpr bool kShort = true;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY spatial_deal_default
#endif

using namespace dnnarray;
using T = Unit<Config::kBytes>::type;
using I = Count<Config::kShort>::type;
constexpr int kVector = Config::kVector, kPlaces = Config::kPlaces, kRank = Config::kRank, kMost = 6;
using Run = Vec<T, kVector>;

// Axis k of those that count, from the slowest to the fastest, is told by the words n* and s* of a Walk, the last one in vectors; y* is the
// distance of neighbours in y.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, T* __restrict__ y, long long threads, long long n0, long long s0, long long y0, long long n1,
                   long long s1, long long y1, long long n2, long long s2, long long y2, long long n3, long long s3, long long y3, long long n4,
                   long long s4, long long y4, long long n5, long long s5, long long y5, long long place1, long long place2, long long place3,
                   long long place4, long long place5, long long place6, long long place7) {
  const Walk<Config::kShort> walks[kMost] = {{n0, s0}, {n1, s1}, {n2, s2}, {n3, s3}, {n4, s4}, {n5, s5}};
  const long long steps[kMost] = {y0, y1, y2, y3, y4, y5}, places[8] = {0, place1, place2, place3, place4, place5, place6, place7};
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= threads) return;
  I from = 0, to = 0, left = static_cast<I>(own);
#pragma unroll
  for (int k = kRank - 1; k >= 0; --k) {
    const I at = k > 0 ? walks[k].split_off(left) : left;
    from += at * walks[k].step;
    to += at * static_cast<I>(steps[k]);
  }
  Run read[kPlaces], written[kPlaces];
#pragma unroll
  for (int r = 0; r < kPlaces; ++r) read[r] = load<T, kVector>(x + from + r * kVector);
#pragma unroll
  for (int e = 0; e < kPlaces * kVector; ++e) written[e % kPlaces].at[e / kPlaces] = read[e / kVector].at[e % kVector];
#pragma unroll
  for (int r = 0; r < kPlaces; ++r) store(y + to + static_cast<I>(places[r]), written[r]);
}
