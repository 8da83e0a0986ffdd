// The gradient of the cross entropy with respect to a block of scores z + bias: dz = both exp(z - lse) - scale w, less
// `hard` at the label, times `factor`, which keeps small gradients in the range of half types until the matrix products
// take it back. kSplit: what the rounding to a half type leaves goes to `low`, so that the products lose nothing that
// float would keep. `total` is the sum of the rows' weights for the mean, null where nothing is divided by it; without
// `grad` the loss has the gradient 1.
//
// Layout:  z, dz and low (rows, pitch), `count` classes from class `first` on next to each other; a block of threads
//          owns a row and takes vectors of kVector scores. With `ones` each row leaves a 1 there (two, kSplit), for the
//          sum over rows by a matrix product.
// Needs:   z and dz aligned to kVector elements, pitch a multiple of kVector; what stands behind `count` is written and
//          never used.
// Bound:   memory: z read once, mostly from the L2, dz written once.

#include "dnnarray/core/vec.cuh"
#include "loss/linear_scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kSmoothing = false;
  static constexpr bool kRowGradients = false;
  static constexpr bool kSplit = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  const Config::Element* grad;
  const dnnarray::arithmetic_t<Config::Element>* lse;
  const dnnarray::arithmetic_t<Config::Element>* total;
  const dnnarray::arithmetic_t<Config::Element>* shares;
  Config::Element* ones;
  long long rows;
  long long pitch;
  long long count;
  long long first;
  long long classes;
  long long ignore;
  double smoothing;
  double factor;
};
#define DNNARRAY_ENTRY loss_linear_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector;

extern "C" __global__ void __launch_bounds__(Config::kThreads, 8)
    DNNARRAY_ENTRY(const A* __restrict__ z, const T* __restrict__ bias, const T* __restrict__ weight,
                   const Config::Target* __restrict__ target, T* __restrict__ dz, T* __restrict__ low,
                   const __grid_constant__ Arguments a) {
  const long long r = blockIdx.x;
  const Label label(target[r], a.classes, a.ignore);
  const A given = a.grad ? widen(a.grad[Config::kRowGradients ? r : 0]) : A(1);
  const A own = (!Config::kRowGradients && a.total ? given / *a.total : given) * A(a.factor);
  Slopes<A> f =
      slopes<Config::kSmoothing>(label, label.weight(weight), own, a.shares, a.lse[r], a.classes, A(a.smoothing));
  f.label -= a.first;
  const T* const here = weight ? weight + a.first : nullptr;
  if (a.ones && threadIdx.x == 0) {
    a.ones[r] = narrow<T>(A(1));
    if (Config::kSplit) a.ones[a.rows + r] = narrow<T>(A(1));
  }
  for (int at = threadIdx.x * kVector; at < a.count; at += Config::kThreads * kVector) {
    const Vec<A, kVector> reg_z = load<A, kVector>(z + r * a.pitch + at);
    A d[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const bool there = at + v < a.count;
      const A score = bias && there ? reg_z.at[v] + widen(bias[a.first + at + v]) : reg_z.at[v];
      d[v] = f.of<Config::kSmoothing>(score, here, at + v, there);
    }
    const Vec<T, kVector> rounded = narrow_all<T, kVector>(d);
    store(dz + r * a.pitch + at, rounded);
    if constexpr (Config::kSplit) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) d[v] -= widen(rounded.at[v]);
      store(low + r * a.pitch + at, narrow_all<T, kVector>(d));
    }
  }
}
