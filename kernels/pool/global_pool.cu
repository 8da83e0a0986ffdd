// Pooling of everything to one element: y[o, i] = the maximum (with its place), mean or Lp norm over l of x[o, l, i].
//
// Layout:  x is (outer, length, inner), y is (outer, inner), dense. inner > 1 (channels-last): a thread owns kVector
//          neighbours of inner, kLanes threads stand beside each other and kTaps threads share the length. inner = 1
//          (channels-first): kTaps threads share a row, each taking vectors along it, and a block has kLanes rows. The
//          threads of a sum meet in shared memory, in a fixed order.
// Needs:   pointers and the inner extent (or the length, where inner is 1) aligned to kVector elements; length below
//          2^30.
// Bound:   memory: x read once.

#include "dnnarray/core/overlap.cuh"
#include "pool/plane.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kReduction = 3;
  static constexpr bool kMagnitude = false;
  static constexpr bool kAlong = true;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 8;
  static constexpr int kTaps = 32;
  static constexpr int kUnroll = 4;
};
struct Arguments {
  long long columns;
  long long length;
  long long inner;
  double p;
};
#define DNNARRAY_ENTRY pool_global_pool_default
#endif

using namespace dnnarray;
using T = Config::Element;
using N = Number<T>;
using A = N::type;
using R = Config::Result;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kTaps = Config::kTaps, kUnroll = Config::kUnroll;
constexpr int kOwned = Config::kAlong ? 1 : kVector;  // results of a thread
using V = Vec<T, kVector>;

constexpr int kIndices = 1, kTap = 2, kMean = 3, kNorm = 4;  // as in direct.cu
constexpr int kReduction = Config::kReduction;
constexpr bool kPlaces = kReduction == kIndices || kReduction == kTap;

constexpr bool kAWarp = Config::kAlong && kTaps == kWarp;  // has a row, and meets by shuffles

using P = Partial<A>;

// Rows that begin four banks apart: threads that add up parts of neighbouring channels meet in none.
constexpr int kPad = kOwned > 1 ? 4 : 0;
__shared__ A smem_values[kOwned][kAWarp ? 1 : kTaps * kLanes + kPad];
__shared__ int smem_places[kPlaces ? kOwned : 1][kPlaces && !kAWarp ? kTaps * kLanes : 1];

__device__ __forceinline__ P stored(int j, int i) {
  return {smem_values[j][i], kPlaces ? smem_places[kPlaces ? j : 0][kPlaces ? i : 0] : 0};
}
__device__ __forceinline__ void keep(const P& part, int j, int i) {
  smem_values[j][i] = part.value;
  if constexpr (kPlaces) smem_places[j][i] = part.place;
}

// The parts of kTaps threads, combined in place; all of them get the result.
template <bool kSum>
__device__ __forceinline__ void meet(P (&own)[kOwned], int tap, int lane) {
  if constexpr (kAWarp) {
    own[0] = combine_lanes<kWarp, kSum, kPlaces>(own[0]);
  } else {
#pragma unroll
    for (int j = 0; j < kOwned; ++j) keep(own[j], j, tap * kLanes + lane);
#pragma unroll
    for (int step = kTaps / 2; step > 0; step /= 2) {
      __syncthreads();
      if (tap < step) {
#pragma unroll
        for (int j = 0; j < kOwned; ++j) {
          own[j] = combined<kSum, kPlaces>(own[j], stored(j, (tap + step) * kLanes + lane));
          keep(own[j], j, tap * kLanes + lane);
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kOwned; ++j) own[j] = stored(j, lane);
    __syncthreads();
  }
}

// The mean of each of the block's results, a thread at a time: parts are added in their order, and neighbours written
// by neighbours.
__device__ __forceinline__ void put_means(R* y, const P (&own)[kOwned], int tap, int lane, int count, A length) {
#pragma unroll
  for (int j = 0; j < kOwned; ++j) smem_values[j][tap * kLanes + lane] = own[j].value;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kTaps * kLanes) {
    A sum = smem_values[i % kOwned][i / kOwned];
#pragma unroll
    for (int t = 1; t < kTaps; ++t) sum += smem_values[i % kOwned][t * kLanes + i / kOwned];
    y[i] = Number<R>::narrowed(sum / length);
  }
  __syncthreads();
}

// own = the reduction of what this thread sees; term(x, j) is the summand or the candidate. kUnroll loads are in flight
// at once.
template <bool kSum, typename Term>
__device__ __forceinline__ void reduce(P (&own)[kOwned], const T* x, long long step, int vectors, int tap, bool inside,
                                       Term term) {
#pragma unroll
  for (int j = 0; j < kOwned; ++j) own[j] = {kSum || Config::kMagnitude ? A(0) : N::lowest(), kNowhere};
  if (!inside) return;
  for (int first = tap; first < vectors; first += kTaps * kUnroll) {
    V reg_x[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * kTaps < vectors) reg_x[u] = load<T, kVector>(x + (first + u * kTaps) * step);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int l = first + u * kTaps;
      if (l >= vectors) break;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int owner = Config::kAlong ? 0 : j;
        const P next{term(N::widened(reg_x[u].at[j]), owner), Config::kAlong ? l * kVector + j : l};
        own[owner] = combined<kSum, kPlaces>(own[owner], next);
      }
    }
  }
}

// `columns` is the number of rows, or of vectors of inner for all outer; `inner` counts vectors.
// Where 512 threads or float64 meet the limit of registers, one block must do: a second would cost spills.
extern "C" __global__ void __launch_bounds__(kTaps* kLanes, kTaps* kLanes >= 512 || sizeof(A) == 8 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ x, R* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  begin_ahead();
  const int tid = threadIdx.x, tap = Config::kAlong ? tid % kTaps : tid / kLanes,
            lane = Config::kAlong ? tid / kTaps : tid % kLanes;
  const A p = A(a.p);
  const long long columns = a.columns, length = a.length, inner = a.inner;
  const int vectors = static_cast<int>(Config::kAlong ? length / kVector : length);
  for (long long first = static_cast<long long>(blockIdx.x) * kLanes; first < columns;
       first += static_cast<long long>(gridDim.x) * kLanes) {
    const long long column = first + lane;
    const bool inside = column < columns;
    const Split by_inner = split(column, static_cast<int>(inner));
    const T* from =
        x + (Config::kAlong ? column * length : (by_inner.quotient * length * inner + by_inner.rest) * kVector);
    take_after_previous_kernel(from);
    const long long step = Config::kAlong ? kVector : inner * kVector;

    P own[kOwned];
    if constexpr (kReduction == kMean) {
      reduce<true>(own, from, step, vectors, tap, inside, [](A v, int) { return v; });
      if constexpr (!Config::kAlong) {
        put_means(y + first * kOwned, own, tap, lane,
                  static_cast<int>(min(columns - first, static_cast<long long>(kLanes))) * kOwned, A(length));
        continue;
      }
      meet<true>(own, tap, lane);
#pragma unroll
      for (int j = 0; j < kOwned; ++j) own[j].value /= A(length);
    } else if constexpr (kReduction == kNorm) {
      reduce<true>(own, from, step, vectors, tap, inside, [&](A v, int) { return power(magnitude(v), p); });
      meet<true>(own, tap, lane);
      bool again = false;
#pragma unroll
      for (int j = 0; j < kOwned; ++j) again |= out_of_range(own[j].value);
      A scale[kOwned];
#pragma unroll
      for (int j = 0; j < kOwned; ++j) scale[j] = A(1);
      if (__syncthreads_or(again)) {
        reduce<false>(own, from, step, vectors, tap, inside, [](A v, int) { return magnitude(v); });
        meet<false>(own, tap, lane);
#pragma unroll
        for (int j = 0; j < kOwned; ++j) scale[j] = scale_of(own[j].value);
        reduce<true>(own, from, step, vectors, tap, inside,
                     [&](A v, int j) { return power<A>(magnitude(v) / scale[j], p); });
        meet<true>(own, tap, lane);
      }
#pragma unroll
      for (int j = 0; j < kOwned; ++j) own[j].value = scale[j] * root(own[j].value, p);
    } else {
      reduce<false>(own, from, step, vectors, tap, inside,
                    [](A v, int) { return Config::kMagnitude ? magnitude(v) : v; });
      meet<false>(own, tap, lane);
    }

    if (inside && tap == 0) {
      const long long to = column * kOwned;
#pragma unroll
      for (int j = 0; j < kOwned; ++j) {
        y[to + j] = kept<kReduction == kTap, R>(own[j].value, own[j].place);
        if constexpr (kReduction == kIndices) indices[to + j] = own[j].place;
      }
    }
  }
}
