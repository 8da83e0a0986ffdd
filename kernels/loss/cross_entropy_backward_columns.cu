// Gradients of the cross entropy where the classes are not next to each other: z (outer, classes, inner); the formulas of
// cross_entropy_backward_rows.
//
// Layout:  a thread owns kVector neighbouring rows and walks down the classes twice, the second time backwards.
// Needs:   pointers aligned to kVector elements, inner a multiple of kVector.
// Bound:   memory: scores read once from memory and once more through the caches, gradients written once.

#include "dnnarray/index.cuh"
#include "dnnarray/scores.cuh"
#include "dnnarray/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kProbabilities = false;
  static constexpr bool kSmoothing = false;
  static constexpr bool kRowGradients = false;
  static constexpr bool kKept = false;
  static constexpr int kUnroll = 4;
  static constexpr int kVector = 1;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY cross_entropy_backward_columns_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;
using V = Vec<T, kVector>;
constexpr int kUnroll = Config::kUnroll;
constexpr bool kShares = Config::kProbabilities || Config::kSmoothing;

struct Options {
  long long classes, inner;
  A smoothing, spread;
  const T* weight;
};

__device__ __forceinline__ A class_weight(const Options& o, long long c) { return o.weight ? widen(o.weight[c]) : A(1); }

// kUnroll classes from `c` on, of all columns of the thread.
__device__ __forceinline__ void fetch(V (&part)[kUnroll], const T* z, const Options& o, long long c) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (c + u < o.classes) part[u] = load<T, kVector>(z + (c + u) * o.inner);
  }
}

__device__ __forceinline__ void take(Scores<A> (&found)[kVector], const V (&part)[kUnroll], const T* q, const Options& o, long long c) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    A values[kUnroll], peak = found[v].peak;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      values[u] = c + u < o.classes ? widen(part[u].at[v]) : -infinity(A(0));
      peak = larger(peak, values[u]);
    }
    found[v].raise(peak);
    found[v].add(values);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (kShares && c + u < o.classes) {
        A own = A(1);
        if constexpr (Config::kProbabilities) own = smoothed(widen(q[(c + u) * o.inner + v]), o.smoothing, o.spread);
        found[v].share += own * class_weight(o, c + u);
      }
    }
  }
}

// Of a row: dz = both * exp(z - base) - scale * share, less `hard` at the label; dq = target * w * (z - base - log_sum).
struct Factors {
  A base, both, scale, hard, target, log_sum;
  long long label;
};

__device__ __forceinline__ Factors factors(const Scores<A>& found, const Options& o, const Config::Target* target, long long r, A own,
                                           long long ignore) {
  Factors f{finite_base(found.peak), own * found.share / found.sum, own, A(0), -own * (A(1) - o.smoothing), log_of(found.sum), -1};
  if constexpr (!Config::kProbabilities) {
    const Label label(target[r], o.classes, ignore);
    f.hard = label.weight(o.weight) * own * (A(1) - o.smoothing);
    f.scale = own * o.spread;
    f.both = (Config::kSmoothing ? f.hard + f.scale * found.share : f.hard) / found.sum;
    f.label = label.index;
    if (!label.kept) f.hard = f.scale = f.both = A(0);
  }
  return f;
}

__device__ __forceinline__ void put(const Factors (&f)[kVector], const V& part, const T* q, T* dz, T* dq, const Options& o, long long c) {
  const A w = kShares ? class_weight(o, c) : A(1);
  V probability, result, other;
  if constexpr (Config::kProbabilities) probability = load<T, kVector>(q + c * o.inner);
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const A shifted = widen(part.at[v]) - f[v].base;
    A d = f[v].both * quick_exp(shifted);
    if constexpr (Config::kProbabilities) {
      d -= f[v].scale * smoothed(widen(probability.at[v]), o.smoothing, o.spread) * w;
      other.at[v] = narrow<T>(f[v].target * w * (shifted - f[v].log_sum));
    } else {
      if (Config::kSmoothing) d -= f[v].scale * w;
      if (c == f[v].label) d -= f[v].hard;
    }
    result.at[v] = narrow<T>(d);
  }
  store(dz + c * o.inner, result);
  if constexpr (Config::kProbabilities) store(dq + c * o.inner, other);
}

// `grad`, `total` and `divisor` as in cross_entropy_backward_rows.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kShares ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ z, const Config::Target* __restrict__ target,
                   const T* __restrict__ weight, const A* __restrict__ total, T* __restrict__ dz, T* __restrict__ dq, long long rows,
                   long long classes, long long inner, long long ignore, double smoothing, double divisor) {
  const long long r = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  if (r >= rows) return;
  const Options o{classes, inner, A(smoothing), A(smoothing / classes), weight};
  const Divided place = divide_index(r, inner);
  const long long offset = place.quotient * classes * inner + place.remainder;
  const T* q = reinterpret_cast<const T*>(target) + offset;  // where the target holds probabilities
  Scores<A> found[kVector];
  V part[kUnroll];
  for (long long c = 0; c < classes; c += kUnroll) {
    fetch(part, z + offset, o, c);
    take(found, part, q, o, c);
    if (Config::kKept) break;
  }
  Factors f[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const A own = Config::kRowGradients ? widen(grad[r + v]) : widen(grad[0]) / (total ? *total : A(divisor));
    f[v] = factors(found[v], o, target, r + v, own, ignore);
  }
  if constexpr (Config::kKept) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u < classes) put(f, part[u], q, dz + offset, dq + offset, o, u);
    }
  } else {
#pragma unroll 4
    for (long long c = classes - 1; c >= 0; --c) put(f, load<T, kVector>(z + offset + c * inner), q, dz + offset, dq + offset, o, c);
  }
}
