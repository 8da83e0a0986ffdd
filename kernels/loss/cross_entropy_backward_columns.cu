// Gradients of the cross entropy where the classes are not next to each other: z (outer, classes, inner); the formulas
// of cross_entropy_backward_rows.
//
// Layout:  a thread owns kVector neighbouring rows and walks down the classes twice, the second time backwards; or
//          (kKept) holds all of them.
// Needs:   pointers aligned to kVector elements, inner a multiple of kVector; kKept: no more than kUnroll classes.
// Bound:   memory: scores read once from memory and once more through the caches, gradients written once.

#include "dnnarray/core/index.cuh"
#include "loss/targets.cuh"

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
struct Arguments {
  long long classes;
  long long ignore;
  double smoothing;
  double divisor;
  long long parts;
  long long rows;
  long long inner;
};
#define DNNARRAY_ENTRY loss_cross_entropy_backward_columns_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kUnroll = Config::kUnroll;
constexpr bool kProbabilities = Config::kProbabilities, kShares = kProbabilities || Config::kSmoothing;
using V = Vec<T, kVector>;
using RowShares = Shares<T, kProbabilities>;

// How many of `left` classes are among the next kUnroll.
__device__ __forceinline__ int few(long long left) { return left < kUnroll ? static_cast<int>(left) : kUnroll; }

template <bool kFew>
struct ClassNumber {
  using type = long long;
};
template <>
struct ClassNumber<true> {
  using type = int;
};
using Class = ClassNumber<Config::kKept>::type;  // each class is compared with the label

__device__ __forceinline__ void put(const Factors<A> (&f)[kVector], const Class (&labels)[kVector], const V& part,
                                    const RowShares (&shares)[kVector], T* dz, T* dq, Class c) {
  A d[kVector], other[kVector];
  widen_all<T>(other, part);
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    other[v] -= f[v].base;
    d[v] = f[v].both * quick_exp(other[v]);
    if (kShares) d[v] -= f[v].scale * shares[v].of(c);
    if (!kProbabilities && c == labels[v]) d[v] -= f[v].hard;
  }
  if (!kProbabilities || dz) store(dz, narrow_all<T>(d));
  if (kProbabilities && dq) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) other[v] = f[v].target * shares[v].weight_of(c) * (other[v] - f[v].log_sum);
    store(dq, narrow_all<T>(other));
  }
}

// Arguments as in cross_entropy_backward_rows.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kShares ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const T* __restrict__ z, const Config::Target* __restrict__ target,
                   const T* __restrict__ weight, const A* __restrict__ totals, T* __restrict__ dz, T* __restrict__ dq,
                   const __grid_constant__ Arguments a) {
  const long long r = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  const bool there = r < a.rows;
  const Divided place = divide_index(there ? r : 0, a.inner);
  const long long offset = place.quotient * a.classes * a.inner + place.remainder;
  const T* from = z + offset;
  V part[kUnroll];
  fetch(part, from, there ? few(a.classes) : 0, a.inner);
  const A total = Config::kRowGradients ? A(1) : total_of(totals, a.parts, a.divisor);
  if (!there) return;
  // What is needed between both passes comes while the scores are read.
  long long labels[kVector];
  A incoming[kVector];
  RowShares shares[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    labels[v] = kProbabilities ? 0 : static_cast<long long>(target[r + v]);
    incoming[v] = widen(grad[Config::kRowGradients ? r + v : 0]);
    shares[v] = {reinterpret_cast<const T*>(target) + offset + v, weight, a.inner, A(a.smoothing),
                 A(a.smoothing / a.classes)};
  }
  Scores<A> found[kVector];
  for (long long c = 0; c < a.classes; c += kUnroll) {
    const int count = few(a.classes - c);
    if (!Config::kKept && c > 0) fetch(part, from + c * a.inner, count, a.inner);
    take_columns<kShares>(found, part, shares, c, count, [](int, int, A) {});
    if (Config::kKept) break;
  }
  Factors<A> f[kVector];
  Class places[kVector];
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const Label label(labels[v], a.classes, a.ignore);
    const A own = kProbabilities ? A(1) : label.weight(weight);
    f[v] = factors<Config::kSmoothing>(found[v], label, own, incoming[v] / total, shares[v]);
    places[v] = label.kept && label.valid ? static_cast<Class>(labels[v]) : -1;
  }
  T *to = further<kProbabilities>(dz, offset), *other = further<kProbabilities>(dq, offset);
  if constexpr (Config::kKept) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      forget_unpacked(part[u]);
      if (u >= static_cast<int>(a.classes)) break;
      put(f, places, part[u], shares, to, other, u);
      to = further<kProbabilities>(to, a.inner), other = further<kProbabilities>(other, a.inner);
    }
  } else {
#pragma unroll 4
    for (long long c = a.classes - 1; c >= 0; --c) {
      const V scores = load<T, kVector>(from + c * a.inner);
      put(f, places, scores, shares, further<kProbabilities>(to, c * a.inner),
          further<kProbabilities>(other, c * a.inner), c);
    }
  }
}
