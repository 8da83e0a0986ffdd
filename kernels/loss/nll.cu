// Negative log-likelihood at the labels, l = -w[t] z[t].
//
// Layout:  z (outer, classes, inner); a thread owns a row, numbered outer * inner + column.
// Bound:   latency of the scattered accesses.

#include "loss/scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  using Loss = float;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long classes;
  long long inner;
  long long ignore;
};
#define DNNARRAY_ENTRY loss_nll_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

// `row_weights` is written where given.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ z, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   Config::Loss* __restrict__ losses, A* __restrict__ row_weights,
                   const __grid_constant__ Arguments a) {
  const long long r = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (r >= a.rows) return;
  const Label label(target[r], a.classes, a.ignore);
  const A own = label.weight(weight);
  A loss = own;  // 0 for a row to ignore, NaN for a label that names no class
  if (label.kept && label.valid)
    loss = -own * widen(z[(r / a.inner * a.classes + label.index) * a.inner + r % a.inner]);
  losses[r] = narrow<Config::Loss>(loss);
  if (row_weights) row_weights[r] = own;
}
