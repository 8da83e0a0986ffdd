// Pooling of short planes to one element each, in channels-first memory: the maximum (with its place), mean or Lp norm of every plane.
//
// Layout:  a block takes `planes` neighbouring planes, which are one piece of memory, into shared memory by whole vectors, whatever their
//          length; kLanes threads then share a plane and meet by shuffles, in a fixed order.
// Needs:   pointers aligned to kWide elements, and `planes` x length a multiple of kWide; dynamic shared memory for them.
// Bound:   memory: x read once.

#include "dnnarray/plane.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  static constexpr int kReduction = 3;
  static constexpr bool kMagnitude = false;
  static constexpr int kWide = 4;
  static constexpr int kLanes = 8;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY pool_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using N = Number<T>;
using A = N::type;
using R = Config::Result;
using P = Partial<A>;
constexpr int kWide = Config::kWide, kLanes = Config::kLanes, kThreads = Config::kThreads;
constexpr int kIndices = 1, kTap = 2, kMean = 3, kNorm = 4, kReduction = Config::kReduction;  // as in windows.cu
constexpr bool kPlaces = kReduction == kIndices || kReduction == kTap;

// `total` elements from memory to shared memory.
__device__ __forceinline__ void stage(T* smem, const T* gmem, int total) {
  const int whole = total / kWide;
  for (int i = threadIdx.x; i < whole; i += kThreads) store(smem + i * kWide, load<T, kWide>(gmem + i * kWide));
  for (int i = whole * kWide + threadIdx.x; i < total; i += kThreads) smem[i] = gmem[i];
}

// The reduction of a plane by kLanes threads; term(x) is the summand or the candidate.
template <bool kSum, typename Term>
__device__ __forceinline__ P reduce(const T* plane, int length, int lane, Term term) {
  P own{kSum || Config::kMagnitude ? A(0) : N::lowest(), kNowhere};
#pragma unroll 4
  for (int l = lane; l < length; l += kLanes) own = combined<kSum, kPlaces>(own, P{term(N::widened(plane[l])), l});
  return combine_lanes<kLanes, kSum, kPlaces>(own);
}

__device__ __forceinline__ A norm(const T* plane, int length, int lane, A p) {
  const A sum = reduce<true>(plane, length, lane, [&](A x) { return power(magnitude(x), p); }).value;
  if (__any_sync(kAllLanes, out_of_range(sum))) {
    const A scale = scale_of(reduce<false>(plane, length, lane, [](A x) { return magnitude(x); }).value);
    return scale * root(reduce<true>(plane, length, lane, [&](A x) { return power<A>(magnitude(x) / scale, p); }).value, p);
  }
  return root(sum, p);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_x, R* __restrict__ gmem_y, long long* __restrict__ gmem_indices, long long total,
                   long long planes, long long length64, double p64) {
  extern __shared__ double smem_x[];
  T* smem = reinterpret_cast<T*>(smem_x);
  const long long first = blockIdx.x * planes;
  const int count = static_cast<int>(total - first < planes ? total - first : planes), length = static_cast<int>(length64);
  stage(smem, gmem_x + first * length, count * length);
  __syncthreads();
  const int lane = threadIdx.x % kLanes;
  for (int begin = 0; begin < count; begin += kThreads / kLanes) {
    const int plane = begin + threadIdx.x / kLanes;
    const T* x = smem + (plane < count ? plane : 0) * length;  // those without a plane go along, for the shuffles
    P result{};
    if constexpr (kReduction == kNorm) {
      result.value = norm(x, length, lane, A(p64));
    } else {
      result = reduce<kReduction == kMean>(x, length, lane, [](A v) { return Config::kMagnitude ? magnitude(v) : v; });
      if constexpr (kReduction == kMean) result.value /= A(length);
    }
    if (plane < count && lane == 0) {
      gmem_y[first + plane] = kept<kReduction == kTap, R>(result.value, result.place);
      if constexpr (kReduction == kIndices) gmem_indices[first + plane] = result.place;
    }
  }
}
