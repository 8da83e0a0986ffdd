// Pooling in channels-first memory with windows that follow each other along W and are whole vectors wide, or several
// to a vector: the maximum (with its place) or mean of each.
//
// Layout:  a thread reduces a vector of kWide columns down the rows of a window, then along the vector to kOwn results.
//          Where a window is wider, kLanes neighbouring lanes share it and meet by shuffles.
// Needs:   pointers and W aligned to kWide elements; windows along W without padding or dilation, none beyond the end
//          of a row.
// Bound:   memory: x read about once (rows that windows share meet in the caches).

#include "pool/down.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kReduction = 3;
  static constexpr bool kMagnitude = false;
  static constexpr bool kAdaptive = false;
  static constexpr int kWide = 4;
  static constexpr int kFlight = 8;
  static constexpr int kLanes = 2;
  static constexpr int kOwn = 1;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long total;
  dnnarray::Divider vectors;
  dnnarray::Divider heights;
  long long width;
  dnnarray::Axis<Config::kAdaptive> h;
  int padded;
};
#define DNNARRAY_ENTRY pool_vector_windows_default
#endif

using namespace dnnarray;
using D = Down<Config>;
using T = D::T;
using A = D::A;
using P = D::P;
using R = Config::Result;
using WindowAxis = Axis<Config::kAdaptive>;
constexpr int kWide = Config::kWide, kLanes = Config::kLanes, kOwn = Config::kOwn, kReduction = Config::kReduction;
constexpr int kIndices = 1, kTap = 2, kMean = 3;               // as in direct.cu
constexpr int kPart = kWide / kOwn, kWindow = kLanes * kPart;  // columns of a window that a thread has, and all of them

// `total` counts threads; `vectors` are those of a row that belong to windows, `heights` the outputs along H.
extern "C" __global__ void __launch_bounds__(Config::kThreads,
                                             D::kPlaces || sizeof(A) == 8 || Config::kFlight > 8 ? 4 : 8)
    DNNARRAY_ENTRY(const T* __restrict__ x, R* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const Split row = a.vectors(thread < a.total ? thread : a.total - 1), place = a.heights(row.quotient);
  const WindowAxis axis_h = a.h;
  const long long width = a.width;
  const Taps h = axis_h.taps(place.rest);
  const long long step = axis_h.dilation * width;
  P own[kWide];
  D::reduce(own, x + (place.quotient * axis_h.extent + h.start) * width + row.rest * kWide, h, step);

  const int lane = row.rest % kLanes;
  const long long to = row.quotient * (a.vectors.divisor * kOwn / kLanes) + row.rest / kLanes * kOwn;
  const bool empty = h.first == h.last;
  Vec<R, kOwn> results;
  Vec<long long, kOwn> places;
#pragma unroll
  for (int o = 0; o < kOwn; ++o) {
    P found = D::nothing();
#pragma unroll
    for (int s = 0; s < kPart; ++s) {
      const P& column = own[o * kPart + s];
      found = combined<D::kSum, D::kPlaces>(
          found, P{column.value, D::kPlaces ? column.place * kWindow + lane * kPart + s : 0});
    }
    found = combine_lanes<kLanes, D::kSum, D::kPlaces>(found);
    if constexpr (kReduction == kMean) found.value *= inverse(A(axis_h.count(h, a.padded)) * A(kWindow));
    results.at[o] = kept<kReduction == kTap, R>(found.value, empty ? -1 : found.place);
    const int r = found.place / kWindow, s = found.place % kWindow, w = (row.rest / kLanes * kOwn + o) * kWindow + s;
    places.at[o] = empty ? -1 : static_cast<long long>(h.start + r * axis_h.dilation) * width + w;
  }
  if (thread >= a.total || lane != 0) return;
  store_wide(y + to, results);
  if constexpr (kReduction == kIndices) store_wide(indices + to, places);
}
