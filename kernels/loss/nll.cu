// Negative log-likelihood at the labels, l = -w[t] z[t]; or its gradient there, dz[t] = -w[t] g, in an array of zeros.
//
// Layout:  z (outer, classes, inner); a thread owns a row, numbered outer * inner + column.
// Bound:   latency of the scattered accesses; the zeros of the gradient are zero.cu's.

#include "dnnarray/scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  using Loss = float;
  static constexpr bool kGradient = false;
  static constexpr bool kRowGradients = false;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY nll_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;

// Forward: `z` is read, `losses` and `row_weights` (where given) are written. Gradient: `losses` holds the gradient of each row's loss or
// (kRowGradients false) of their sum over *row_weights, 1 where that is not given; `z` is written.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(T* __restrict__ z, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   Config::Loss* __restrict__ losses, A* __restrict__ row_weights, long long rows, long long classes, long long inner,
                   long long ignore) {
  const long long r = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (r >= rows) return;
  const Label label(target[r], classes, ignore);
  const A own = label.weight(weight);
  T* row = z + r / inner * classes * inner + r % inner;
  if constexpr (Config::kGradient) {
    const A g = Config::kRowGradients ? widen(losses[r]) : widen(losses[0]) / (row_weights ? *row_weights : A(1));
    if (label.kept && label.valid) row[label.index * inner] = narrow<T>(-own * g);
    if (label.kept && !label.valid) {
      for (long long c = 0; c < classes; ++c) row[c * inner] = narrow<T>(quiet_nan(A(0)));
    }
  } else {
    A loss = own;  // 0 for a row to ignore, NaN for a label that names no class
    if (label.kept && label.valid) loss = -own * widen(row[label.index * inner]);
    losses[r] = narrow<Config::Loss>(loss);
    if (row_weights) row_weights[r] = own;
  }
}
