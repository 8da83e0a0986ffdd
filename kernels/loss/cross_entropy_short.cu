// The cross entropy of rows of few classes against labels, l = w[t] (lse - z[t]), or (kGradient) the gradients of their
// losses, dz = w[t] g (softmax(z) - [class is t]).
//
// Layout:  z (rows, classes), the classes next to each other. kLanes threads own kRows rows at a time, a vector of
//          kVector classes of each; thread j of them fetches the label of row j and does what is to be done once a row.
//          kSums: the losses and weights of a block's rows are summed up.
// Needs:   pointers aligned to kVector elements, classes a multiple of kVector and no more than kLanes vectors, kRows
//          <= kLanes.
// Bound:   memory: scores read once, gradients written once.

#include "dnnarray/core/vec.cuh"
#include "loss/scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  using Loss = float;
  static constexpr bool kGradient = false;
  static constexpr bool kRowGradients = false;
  static constexpr bool kSums = true;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  Config::Loss* losses;
  dnnarray::arithmetic_t<Config::Element>* row_weights;
  dnnarray::arithmetic_t<Config::Element>* lse;
  Config::Element* dz;
  long long rows;
  long long classes;
  long long ignore;
  double divisor;
  long long parts;
};
#define DNNARRAY_ENTRY loss_cross_entropy_short_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kRows = Config::kRows, kThreads = Config::kThreads;
constexpr int kGroups = kThreads / kLanes;
using V = Vec<T, kVector>;

// Forward: `grad` is not looked at; `losses`, `row_weights` and `lse` are written where given. Gradient: `grad` holds
//          the gradient of each row's loss
// or (kRowGradients false) that of their sum over the sum of `parts` row_weights, or over `divisor` where those are not
// given; dz is written.
extern "C" __global__ void __launch_bounds__(kThreads, sizeof(T) == 8 || kVector == 1 ? 1 : 0)
    DNNARRAY_ENTRY(const T* __restrict__ z, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   const T* __restrict__ grad, const __grid_constant__ Arguments a) {
  __shared__ A shared[2 * kThreads / kWarp];
  let_next_kernel_begin();
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, at = lane * kVector;
  const long long first = static_cast<long long>(blockIdx.x) * (kGroups * kRows) + group;  // rows stand kGroups apart
  const bool inside = at < a.classes;
  V part[kRows];
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const long long r = first + j * kGroups;
    if (inside && r < a.rows) part[j] = load<T, kVector>(z + r * a.classes + at);
  }
  const A total = Config::kGradient && !Config::kRowGradients ? total_of<A>(a.row_weights, a.parts, a.divisor) : A(1);
  const long long r = first + lane * kGroups;  // the row of this thread's label
  const bool there = lane < kRows && r < a.rows;
  const Label label(there ? target[r] : Config::Target(0), a.classes, a.ignore);
  A own = there ? label.weight(weight) : A(0), score = A(0);
  if (there && label.kept && label.valid) score = widen(z[r * a.classes + label.index]);

  A e[kRows][kVector], my_peak = A(0), my_sum = A(1);
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    A peak = -infinity(A(0)), sum = A(0);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      e[j][v] = inside && first + j * kGroups < a.rows ? widen(part[j].at[v]) : -infinity(A(0));
      peak = larger(peak, e[j][v]);
    }
    peak = warp_reduce<kLanes>(peak, Larger());
    const A base = finite_base(peak);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      e[j][v] = quick_exp(e[j][v] - base);
      sum += e[j][v];
    }
    sum = warp_sum<kLanes>(sum);
    if (lane == j) my_peak = peak, my_sum = sum;
  }

  if constexpr (Config::kGradient) {
    const A factor = !there ? A(0) : Config::kRowGradients ? widen(grad[r]) : widen(grad[0]) / total;
    const A hard = label.kept ? own * factor : A(0), both = label.kept ? hard / my_sum : A(0);
    const int place = label.kept && label.valid ? static_cast<int>(label.index) : -1;
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int from = threadIdx.x % kWarp / kLanes * kLanes + j;
      const A its_hard = __shfl_sync(kAllLanes, hard, from), its_both = __shfl_sync(kAllLanes, both, from);
      const int its_place = __shfl_sync(kAllLanes, place, from) - at;
      V result;
#pragma unroll
      for (int v = 0; v < kVector; ++v)
        result.at[v] = narrow<T>(its_both * e[j][v] - (v == its_place ? its_hard : A(0)));
      const long long row = first + j * kGroups;
      if (inside && row < a.rows) store(a.dz + row * a.classes + at, result);
    }
  } else {
    const A log_sum = log_of(my_sum);
    A loss = own;  // 0 for a row to ignore, NaN for a label that names no class
    if (there && label.kept && label.valid) loss = own * (log_sum - (score - finite_base(my_peak)));
    if (a.lse && there) a.lse[r] = log_sum_exp(Scores<A>{my_peak}, log_sum);
    if constexpr (Config::kSums) {
      block_reduce<kThreads>(loss, Sum(), own, Sum(), shared);
      if (threadIdx.x != 0) return;
      a.losses[blockIdx.x] = narrow<Config::Loss>(loss);
      if (a.row_weights) a.row_weights[blockIdx.x] = own;
    } else if (there) {
      a.losses[r] = narrow<Config::Loss>(loss);
    }
  }
}
