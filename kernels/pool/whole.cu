// Pooling of everything to one element: y[o, i] = the maximum (with its place), mean or Lp norm over l of x[o, l, i].
//
// Layout:  x is (outer, length, inner), y is (outer, inner), dense. inner > 1 (channels-last): a thread owns kVector neighbours of inner,
//          kLanes threads stand beside each other and kTaps threads share the length. inner = 1 (channels-first): kTaps threads share a row,
//          each taking vectors along it, and a block has kLanes rows. The threads of a sum meet in shared memory, in a fixed order.
// Needs:   pointers and the inner extent (or the length, where inner is 1) aligned to kVector elements; length below 2^30.
// Bound:   memory: x read once.

#include "dnnarray/window.cuh"

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
};
#define DNNARRAY_ENTRY pool_whole_default
#endif

using namespace dnnarray;
using T = Config::Element;
using N = Number<T>;
using A = N::type;
using R = Config::Result;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kTaps = Config::kTaps;
constexpr int kOwned = Config::kAlong ? 1 : kVector;  // results of a thread
using V = Vec<T, kVector>;

constexpr int kIndices = 1, kTap = 2, kMean = 3, kNorm = 4;  // as in windows.cu
constexpr int kReduction = Config::kReduction;
constexpr bool kPlaces = kReduction == kIndices || kReduction == kTap;
constexpr int kNowhere = 0x7fffffff;

struct Partial {
  A value;
  int place;
};

// The first of equal maxima, the last NaN.
__device__ __forceinline__ Partial larger(const Partial& a, const Partial& b) {
  if constexpr (kPlaces) {
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    const bool ahead = b.value > a.value || (b.value == a.value && b.place < a.place);
    return (nan_b ? !nan_a || b.place > a.place : !nan_a && ahead) ? b : a;
  }
  return wins(b.value, a.value) ? b : a;
}

template <bool kSum>
__device__ __forceinline__ Partial combined(const Partial& a, const Partial& b) {
  if constexpr (kSum) return {a.value + b.value, 0};
  return larger(a, b);
}

__shared__ Partial smem_partials[kOwned][kTaps * kLanes];

// The partial results of kTaps threads, combined in place; all of them get the result.
template <bool kSum>
__device__ __forceinline__ void meet(Partial (&own)[kOwned], int tap, int lane) {
#pragma unroll
  for (int j = 0; j < kOwned; ++j) smem_partials[j][tap * kLanes + lane] = own[j];
#pragma unroll
  for (int step = kTaps / 2; step > 0; step /= 2) {
    __syncthreads();
    if (tap < step) {
#pragma unroll
      for (int j = 0; j < kOwned; ++j) {
        Partial& mine = smem_partials[j][tap * kLanes + lane];
        mine = combined<kSum>(mine, smem_partials[j][(tap + step) * kLanes + lane]);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kOwned; ++j) own[j] = smem_partials[j][lane];
  __syncthreads();
}

// own = the reduction of what this thread sees; term(x, j) is the summand or the candidate.
template <bool kSum, typename Term>
__device__ __forceinline__ void reduce(Partial (&own)[kOwned], const T* x, long long step, int vectors, int tap, bool inside, Term term) {
#pragma unroll
  for (int j = 0; j < kOwned; ++j) own[j] = {kSum || Config::kMagnitude ? A(0) : N::lowest(), kNowhere};
  if (!inside) return;
#pragma unroll 4
  for (int l = tap; l < vectors; l += kTaps) {
    const V v = load<T, kVector>(x + l * step);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const int owner = Config::kAlong ? 0 : j;
      const Partial next{term(N::widened(v.at[j]), owner), Config::kAlong ? l * kVector + j : l};
      own[owner] = combined<kSum>(own[owner], next);
    }
  }
}

// `columns` is the number of rows, or of vectors of inner for all outer; `inner` counts vectors.
extern "C" __global__ void __launch_bounds__(kTaps * kLanes)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_x, R* __restrict__ gmem_y, long long* __restrict__ gmem_indices, long long columns,
                   long long length, long long inner, double p64) {
  const int tid = threadIdx.x, tap = Config::kAlong ? tid % kTaps : tid / kLanes, lane = Config::kAlong ? tid / kTaps : tid % kLanes;
  const A p = A(p64);
  const int vectors = static_cast<int>(Config::kAlong ? length / kVector : length);
  for (long long first = static_cast<long long>(blockIdx.x) * kLanes; first < columns; first += static_cast<long long>(gridDim.x) * kLanes) {
    const long long column = first + lane;
    const bool inside = column < columns;
    const Split by_inner = split(column, static_cast<int>(inner));
    const T* x = gmem_x + (Config::kAlong ? column * length : (by_inner.quotient * length * inner + by_inner.rest) * kVector);
    const long long step = Config::kAlong ? kVector : inner * kVector;

    Partial own[kOwned];
    if constexpr (kReduction == kMean) {
      reduce<true>(own, x, step, vectors, tap, inside, [](A v, int) { return v; });
      meet<true>(own, tap, lane);
#pragma unroll
      for (int j = 0; j < kOwned; ++j) own[j].value /= A(length);
    } else {
      reduce<false>(own, x, step, vectors, tap, inside, [](A v, int) { return Config::kMagnitude ? magnitude(v) : v; });
      meet<false>(own, tap, lane);
    }
    if constexpr (kReduction == kNorm) {
      A scale[kOwned];
#pragma unroll
      for (int j = 0; j < kOwned; ++j) {
        const A largest = own[j].value;
        scale[j] = largest > A(0) && largest - largest == A(0) ? largest : A(1);
      }
      reduce<true>(own, x, step, vectors, tap, inside, [&](A v, int j) { return power<A>(magnitude(v) / scale[j], p); });
      meet<true>(own, tap, lane);
#pragma unroll
      for (int j = 0; j < kOwned; ++j) own[j].value = scale[j] * root(own[j].value, p);
    }

    if (inside && tap == 0) {
      const long long y = column * kOwned;
#pragma unroll
      for (int j = 0; j < kOwned; ++j) {
        gmem_y[y + j] = kept<kReduction == kTap, R>(own[j].value, own[j].place);
        if constexpr (kReduction == kIndices) gmem_indices[y + j] = own[j].place;
      }
    }
  }
}
