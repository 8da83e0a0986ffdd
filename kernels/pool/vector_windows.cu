// Pooling in channels-first memory with windows that follow each other along W and are whole vectors wide, or several to a vector: the maximum (with
// its place) or mean of each.
//
// Layout:  a thread reduces a vector of kWide columns down the rows of a window, then along the vector to kOwn results. Where a window is wider,
//          kLanes neighbouring lanes share it and meet by shuffles.
// Needs:   pointers and W aligned to kWide elements; windows along W without padding or dilation, none beyond the end of a row.
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
constexpr int kIndices = 1, kTap = 2, kMean = 3;  // as in direct.cu
constexpr int kPart = kWide / kOwn, kWindow = kLanes * kPart;  // columns of a window that a thread has, and all of them

// `total` counts threads. Divided is by the `vectors` of a row that belong to windows, and by the outputs along H.
extern "C" __global__ void __launch_bounds__(Config::kThreads, D::kPlaces || sizeof(A) == 8 || Config::kFlight > 8 ? 4 : 8)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_x, R* __restrict__ gmem_y, long long* __restrict__ gmem_indices, long long total,
                   long long vectors, long long by_vectors, long long heights, long long by_height, long long width, long long h0, long long h1,
                   long long h2, long long h3, long long padded) {
  const long long thread = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const Split row = Divider(vectors, by_vectors)(thread < total ? thread : total - 1), place = Divider(heights, by_height)(row.quotient);
  const WindowAxis axis_h(h0, h1, h2, h3);
  const Taps h = axis_h.taps(place.rest);
  const long long step = axis_h.dilation * width;
  P own[kWide];
  D::reduce(own, gmem_x + (place.quotient * axis_h.extent + h.start) * width + row.rest * kWide, h, step);

  const int lane = row.rest % kLanes;
  const long long y = row.quotient * (high(vectors) * kOwn / kLanes) + row.rest / kLanes * kOwn;
  const bool empty = h.first == h.last;
  Vec<R, kOwn> results;
  Vec<long long, kOwn> indices;
#pragma unroll
  for (int o = 0; o < kOwn; ++o) {
    P found = D::nothing();
#pragma unroll
    for (int s = 0; s < kPart; ++s) {
      const P& column = own[o * kPart + s];
      found = combined<D::kSum, D::kPlaces>(found, P{column.value, D::kPlaces ? column.place * kWindow + lane * kPart + s : 0});
    }
    found = combine_lanes<kLanes, D::kSum, D::kPlaces>(found);
    if constexpr (kReduction == kMean) found.value *= inverse(A(axis_h.count(h, padded)) * A(kWindow));
    results.at[o] = kept<kReduction == kTap, R>(found.value, empty ? -1 : found.place);
    const int r = found.place / kWindow, s = found.place % kWindow, w = (row.rest / kLanes * kOwn + o) * kWindow + s;
    indices.at[o] = empty ? -1 : static_cast<long long>(h.start + r * axis_h.dilation) * width + w;
  }
  if (thread >= total || lane != 0) return;
  store_wide(gmem_y + y, results);
  if constexpr (kReduction == kIndices) store_wide(gmem_indices + y, indices);
}
