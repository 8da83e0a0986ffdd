// The gradient of the negative log-likelihood: dz[t] = -w[t] g at the label of each row, 0 elsewhere; NaN in a row whose label names no class.
//
// Layout:  dz (outer, classes, inner), rows numbered outer * inner + column; a thread owns kCount vectors of kVector neighbours, kThreads
//          apart. kColumns: inner is more than 1.
// Needs:   dz aligned to kVector elements.
// Bound:   memory: dz written once.

#include "dnnarray/index.cuh"
#include "dnnarray/scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kRowGradients = false;
  static constexpr bool kColumns = false;
  static constexpr int kVector = 4;
  static constexpr int kCount = 4;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY nll_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kCount = Config::kCount, kThreads = Config::kThreads;

// The label of a row and what stands there in the gradient.
struct Place {
  long long index;
  T value;
  bool broken;
};

// `grad` holds the gradient of each row's loss or (kRowGradients false) that of their sum over *total, or of their sum where that is not given.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   const A* __restrict__ total, T* __restrict__ dz, long long size, long long classes, long long inner, long long ignore) {
  const A shared_factor = Config::kRowGradients ? A(1) : widen(grad[0]) / (total ? *total : A(1));
  const auto find = [&](long long r) {
    const Label label(target[r], classes, ignore);
    const A g = Config::kRowGradients ? widen(grad[r]) : shared_factor;
    return Place{label.kept && label.valid ? label.index : -1, narrow<T>(-label.weight(weight) * g), label.kept && !label.valid};
  };
  const T nothing = narrow<T>(A(0)), nan = narrow<T>(quiet_nan(A(0)));
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const long long i = ((static_cast<long long>(blockIdx.x) * kCount + j) * kThreads + threadIdx.x) * kVector;
    if (i >= size) return;
    Divided column = Config::kColumns ? divide_index(i, inner) : Divided{i, 0}, outer = divide_index(column.quotient, classes);
    Place place = find(outer.quotient * inner + column.remainder);
    Vec<T, kVector> part;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      part.at[v] = place.broken ? nan : outer.remainder == place.index ? place.value : nothing;
      const bool turns = !Config::kColumns || ++column.remainder == inner;
      if (turns) column.remainder = 0;
      if (turns && ++outer.remainder == classes) outer = {outer.quotient + 1, 0};
      const bool another = Config::kColumns || outer.remainder == 0;
      if (another && v + 1 < kVector && i + v + 1 < size) place = find(outer.quotient * inner + column.remainder);
    }
    if (i + kVector <= size) {
      store(dz + i, part);
    } else {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        if (i + v < size) dz[i + v] = part.at[v];
      }
    }
  }
}
