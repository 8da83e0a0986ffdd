// y[k, c, p, q] pools the samples of bin (p, q) of box k, for planes that fit into shared memory and kRatio samples along each side of a bin:
// their mean, or the largest weighted pixel of all samples.
//
// The taps of a bin are a grid, 2 kRatio pixels down times 2 kRatio across. A lane owns one tap across of one bin and walks down kGroup rows of
// bins; then 2 kRatio lanes add up a bin, each those of another row. Samples that do not count read zeros that stand behind the plane.
//
// Layout:  x (N, C, height, width), y (K, C, p, q); taps and images of the boxes by roi_align_sides.cu. A block owns a plane of x; its warps take
//          turns at the boxes of that image, and in the first image's planes at those that are not valid, which give NaN.
// Needs:   pointers aligned to kVector elements, height * width a multiple of it; width more elements of shared memory.
// Bound:   memory: x read once, y written once; the look-ups in shared memory.

#include "dnnarray/cluster.cuh"
#include "dnnarray/roi.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kMaximum = false;
  static constexpr int kRatio = 2;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 1024;
};
#define DNNARRAY_ENTRY roi_align_planes_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kRatio = Config::kRatio, kTaps = 2 * kRatio, kThreads = Config::kThreads, kWarps = kThreads / kWarp, kVector = Config::kVector;
constexpr int kGroup = kTaps < 4 ? kTaps : 4;
using Tap = BoxTap<A>;

struct Better {
  __device__ __forceinline__ A operator()(A a, A b) const { return Config::kMaximum ? Max()(a, b) : a + b; }
};

// The tap across of a lane: where its pixel of the first row stands in shared memory, 1 if it counts.
struct Across {
  unsigned address;
  int there;
  A weight;
};

// The pixels at the taps down and one tap across: their weighted sum, or the largest. All lanes have the same taps down.
__device__ __forceinline__ A walk_down(const Tap* from, const Across& across) {
  constexpr int kPair = 16 / sizeof(Tap);
  A total = Config::kMaximum ? -infinity(A(0)) : A(0);
#pragma unroll
  for (int t = 0; t < kTaps; t += kPair) {
    const Vec<Tap, kPair> pair = load<Tap, kPair>(from + t);
#pragma unroll
    for (int k = 0; k < kPair; ++k) {
      const A pixel = widen(read_shared<T>(across.address + static_cast<unsigned>(pair.at[k].pixel * across.there)));
      total = Config::kMaximum ? Max()(total, pixel * (pair.at[k].weight * across.weight)) : total + pixel * pair.at[k].weight;
    }
  }
  return Config::kMaximum ? total : total * across.weight;
}

// Of kGroup values of each of kTaps lanes, all lanes' values number `row_of(lane)`.
__device__ __forceinline__ A reduce(A (&values)[kGroup], int lane) {
#pragma unroll
  for (int half = kGroup / 2, bit = 1; half > 0; half /= 2, bit *= 2) {
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const A other = __shfl_xor_sync(kAllLanes, upper ? values[i] : values[i + half], bit);
      values[i] = Better()(upper ? values[i + half] : values[i], other);
    }
  }
  A result = values[0];
#pragma unroll
  for (int bit = kGroup; bit < kTaps; bit *= 2) result = Better()(result, __shfl_xor_sync(kAllLanes, result, bit));
  return result;
}
__device__ __forceinline__ int row_of(int lane) { return kGroup == 4 ? lane % 2 * 2 + lane / 2 % 2 : lane % 2; }

// All bins of a box; `y` points at the first.
__device__ __forceinline__ void pool(unsigned plane, unsigned zeros, const Tap* taps, T* y, int p, int q) {
  const int lane = threadIdx.x % kWarp;
  const Tap* acrosses = taps + p * kTaps;
  for (int front = 0; front < q * kTaps; front += kWarp) {
    const int own = (front + lane) / kTaps;
    const Tap tap = acrosses[own < q ? front + lane : 0];
    const bool there = tap.pixel >= 0;
    const Across across{there ? plane + static_cast<unsigned>(tap.pixel) : zeros, there,
                        Config::kMaximum ? tap.weight : tap.weight * (A(1) / A(kRatio * kRatio))};
    const int mine = own < q && lane % kTaps < kGroup ? row_of(lane) : p;
#pragma unroll 1
    for (int row = 0; row < p; row += kGroup) {
      A totals[kGroup];
#pragma unroll
      for (int g = 0; g < kGroup; ++g) totals[g] = walk_down(taps + (row + g < p ? row + g : row) * kTaps, across);
      const A total = reduce(totals, lane);
      if (row + mine < p) y[(row + mine) * q + own] = narrow<T>(total);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Tap* __restrict__ taps, const int* __restrict__ image_of, T* __restrict__ y,
                   long long channels, long long height, long long width, long long count, long long p, long long q) {
  extern __shared__ __align__(16) char dnn_smem[];
  T* plane = reinterpret_cast<T*>(dnn_smem);
  const int n = static_cast<int>(blockIdx.x / channels), size = static_cast<int>(height * width), warp = threadIdx.x / kWarp;
  const int bins = static_cast<int>(p * q);
  const long long c = blockIdx.x % channels;
  const T* source = x + static_cast<long long>(blockIdx.x) * size;
  for (int i = threadIdx.x * kVector; i < size; i += kThreads * kVector) {
    if constexpr (kVector * sizeof(T) == 16) {
      copy_async(plane + i, source + i);
    } else {
      store(plane + i, load<T, kVector>(source + i));
    }
  }
  for (int i = threadIdx.x; i < width; i += kThreads) plane[size + i] = narrow<T>(A(0));
  copies_commit();
  copies_wait<0>();
  __syncthreads();
  const unsigned start = static_cast<unsigned>(__cvta_generic_to_shared(plane)), zeros = start + size * static_cast<unsigned>(sizeof(T));
  for (long long first = warp; first < count; first += kThreads) {
    const long long own = first + static_cast<long long>(threadIdx.x % kWarp) * kWarps;
    const int image = own < count ? image_of[own] : -2;
    for (unsigned left = __ballot_sync(kAllLanes, image == n || (image == -1 && n == 0)); left != 0; left &= left - 1) {
      const int lane = __ffs(left) - 1;
      const long long k = first + static_cast<long long>(lane) * kWarps;
      T* to = y + (k * channels + c) * bins;
      if (__shfl_sync(kAllLanes, image, lane) >= 0) {
        pool(start, zeros, taps + k * (p + q) * kTaps, to, static_cast<int>(p), static_cast<int>(q));
      } else {
        for (int i = threadIdx.x % kWarp; i < bins; i += kWarp) to[i] = narrow<T>(quiet_nan(A(0)));
      }
    }
  }
}
