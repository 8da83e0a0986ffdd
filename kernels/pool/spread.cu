// Gradient of pooling of whole planes: every element of x gets its part of the one gradient of its plane, as in gather.cu.
//
// Layout:  x is (planes, length) in channels-first, (outer, length, inner) in channels-last. A thread owns a vector of kWide elements: of x as
//          it lies in memory (kWalking: a vector may reach into the next planes), or of kWide neighbouring channels at kSteps places.
// Needs:   pointers and the channels aligned to kWide elements, and the length too unless kWalking; length below 2^30.
// Bound:   memory: dx written once.

#include "dnnarray/index.cuh"
#include "dnnarray/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Saved = unsigned char;
  static constexpr int kRule = 2;
  static constexpr bool kMagnitude = false;
  static constexpr bool kLast = false;
  static constexpr bool kWalking = false;
  static constexpr int kWide = 4;
  static constexpr int kSteps = 1;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY pool_spread_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
using Saved = Config::Saved;
constexpr int kWide = Config::kWide, kSteps = Config::kSteps;
constexpr int kTap = 0, kPlace = 1, kMean = 2, kNorm = 3, kRule = Config::kRule;  // as in gather.cu; a tap's number is its place here
constexpr bool kReadsX = kRule == kNorm || Config::kMagnitude;
using V = Vec<T, kWide>;

// The gradient of the element x at `place` of a plane that has the gradient g (its share, for a mean).
__device__ __forceinline__ A gradient(A g, Saved saved, A x, int place, A p) {
  A slope = kReadsX ? sign(x) : A(1);
  if constexpr (kRule == kNorm) slope *= norm_slope(magnitude(x), A(saved), p);
  if constexpr (kRule == kTap || kRule == kPlace) {
    if (static_cast<long long>(saved) != place) return kReadsX ? A(0) * slope : A(0);
  }
  return kReadsX ? g * slope : g;
}

struct Planes {
  const T *grad, *x;
  const Saved* saved;
  T* dx;
  long long total, length, inner;
  A p, share;

  // kWide elements from number i on, in memory order.
  __device__ __forceinline__ void first(long long i) const {
    const Divided at = divide_index(i, length);
    long long plane = at.quotient;
    int place = static_cast<int>(at.remainder);
    const int count = Config::kWalking && total - i < kWide ? static_cast<int>(total - i) : kWide;
    V reg_x, reg_dx;
    if constexpr (kReadsX) {
      if (count == kWide) {
        reg_x = load<T, kWide>(x + i);
      } else {
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          if (j < count) reg_x.at[j] = x[i + j];
        }
      }
    }
    A g = widen(grad[plane]) * share;
    Saved s{};
    if constexpr (kRule != kMean) s = saved[plane];
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      if (Config::kWalking && j >= count) break;
      reg_dx.at[j] = narrow<T>(gradient(g, s, kReadsX ? widen(reg_x.at[j]) : A(0), place, p));
      ++place;
      if (Config::kWalking && place == length && j + 1 < count) {
        place = 0;
        ++plane;
        g = widen(grad[plane]) * share;
        if constexpr (kRule != kMean) s = saved[plane];
      }
    }
    if (count == kWide) {
      store(dx + i, reg_dx);
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (j < count) dx[i + j] = reg_dx.at[j];
      }
    }
  }

  // kSteps places of kWide channels.
  __device__ __forceinline__ void last(long long i) const {
    const Divided by_inner = divide_index(i, inner), by_place = divide_index(by_inner.quotient, (length + kSteps - 1) / kSteps);
    const int begin = static_cast<int>(by_place.remainder) * kSteps;
    const long long from = (by_place.quotient * inner + by_inner.remainder) * kWide;
    const V reg_grad = load<T, kWide>(grad + from);
    Vec<Saved, kWide> reg_saved{};
    if constexpr (kRule != kMean) reg_saved = load_wide<Saved, kWide>(saved + from);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (begin + step >= length) return;
      const long long at = ((by_place.quotient * length + begin + step) * inner + by_inner.remainder) * kWide;
      V reg_x, reg_dx;
      if constexpr (kReadsX) reg_x = load<T, kWide>(x + at);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const A value = kReadsX ? widen(reg_x.at[j]) : A(0);
        reg_dx.at[j] = narrow<T>(gradient(widen(reg_grad.at[j]) * share, reg_saved.at[j], value, begin + step, p));
      }
      store(dx + at, reg_dx);
    }
  }
};

// `total` counts elements (channels-first), or vectors of channels at kSteps places; `inner` counts vectors.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ gmem_grad, const T* __restrict__ gmem_x, const Saved* __restrict__ gmem_saved,
                   T* __restrict__ gmem_dx, long long total, long long length, long long inner, double p64) {
  const A share = kRule == kMean ? A(1) / A(length) : A(1);
  const Planes planes{gmem_grad, gmem_x, gmem_saved, gmem_dx, total, length, inner, A(p64), share};
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * (Config::kLast ? 1 : kWide);
  if (i >= total) return;
  if constexpr (Config::kLast) {
    planes.last(i);
  } else {
    planes.first(i);
  }
}
