// What the cross entropy must know of each row of scores z + bias, gathered over blocks of classes; with the last block
// the losses: l = (1 - e) w[t] (lse - z[t]) + e / C sum_c w[c] (lse - z[c]).
//
// Layout:  z (rows, pitch), `count` classes from class `first` on next to each other; a block of threads owns a row and
//          takes 16-byte vectors. Between blocks of classes a row's peak, sum, score of the label, shifted sum and
//          share stand in `state`, (5, rows).
// Needs:   z aligned to kVector elements, pitch a multiple of kVector; what stands behind `count` is read and not used.
// Bound:   memory: the scores of a block are read once, mostly from the L2, where the matrix product has left them.

#include "dnnarray/core/vec.cuh"
#include "loss/linear_scores.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  using Loss = float;
  static constexpr bool kSmoothing = false;
  static constexpr int kVector = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  dnnarray::arithmetic_t<Config::Element>* state;
  Config::Loss* losses;
  dnnarray::arithmetic_t<Config::Element>* row_weights;
  dnnarray::arithmetic_t<Config::Element>* lse;
  long long rows;
  long long pitch;
  long long count;
  long long first;
  long long classes;
  long long ignore;
  double smoothing;
};
#define DNNARRAY_ENTRY loss_linear_statistics_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kThreads = Config::kThreads, kUnroll = 16 / kVector;
constexpr bool kSmoothing = Config::kSmoothing;

// A row's part of a block of scores.
struct Part {
  const A* z;
  const T *bias, *weight;  // of the block's first class on; null where there is none
  int count;

  __device__ __forceinline__ A score(const A value, int at) const { return bias ? value + widen(bias[at]) : value; }
};

// kUnroll vectors into what is known of the row.
__device__ __forceinline__ void take(Scores<A>& found, const Part& part, int at) {
  A values[kUnroll][kVector], peak = found.peak;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int here = at + u * kThreads * kVector;
    Vec<A, kVector> reg_z{};
    if (here < part.count) reg_z = load<A, kVector>(part.z + here);
#pragma unroll
    for (int v = 0; v < kVector; ++v) values[u][v] = here + v < part.count ? reg_z.at[v] : -infinity(A(0));
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const int here = at + u * kThreads * kVector + v;
      if (part.bias && here < part.count) values[u][v] = part.score(values[u][v], here);
      peak = larger(peak, values[u][v]);
    }
  }
  found.raise(peak);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const int here = at + u * kThreads * kVector + v;
      found.add(values[u][v]);
      if (kSmoothing && here < part.count) found.add_share(values[u][v], part.weight ? widen(part.weight[here]) : A(1));
    }
  }
}

// What is kept of a row between blocks of classes.
struct State {
  A* memory;
  long long rows, r;

  __device__ __forceinline__ A& at(int i) const { return memory[i * rows + r]; }
  __device__ __forceinline__ A read(Scores<A>& found) const {
    found.peak = at(0);
    found.sum = at(1);
    if constexpr (kSmoothing) {
      found.shifted = at(3);
      found.share = at(4);
    }
    return at(2);
  }
  __device__ __forceinline__ void write(const Scores<A>& found, A picked) const {
    at(0) = found.peak;
    at(1) = found.sum;
    at(2) = picked;
    if constexpr (kSmoothing) {
      at(3) = found.shifted;
      at(4) = found.share;
    }
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, sizeof(A) == 8 ? 2 : 4)
    DNNARRAY_ENTRY(const A* __restrict__ z, const T* __restrict__ bias, const T* __restrict__ weight,
                   const Config::Target* __restrict__ target, const __grid_constant__ Arguments a) {
  __shared__ A shared[kThreads / kWarp];
  const long long r = blockIdx.x;
  const Part part{z + r * a.pitch, bias ? bias + a.first : nullptr, weight ? weight + a.first : nullptr,
                  static_cast<int>(a.count)};
  const State kept{a.state, a.rows, r};
  Scores<A> found;
  A picked = A(0);
  if (a.first > 0 && threadIdx.x == 0) picked = kept.read(found);
  for (int at = threadIdx.x * kVector; at < part.count; at += kThreads * kVector * kUnroll) take(found, part, at);
  combine<kThreads, kThreads, kSmoothing>(found, shared);
  if (threadIdx.x != 0) return;
  const Label label(target[r], a.classes, a.ignore);
  if (label.valid && label.index >= a.first && label.index < a.first + a.count) {
    const int at = static_cast<int>(label.index - a.first);
    picked = part.score(part.z[at], at);
  }
  if (a.first + a.count < a.classes) {
    kept.write(found, picked);
    return;
  }
  const A log_sum = log_of(found.sum), own = label.weight(weight);
  if (a.losses)
    a.losses[r] =
        narrow<Config::Loss>(row_loss<kSmoothing>(found, log_sum, label, own, picked, A(a.smoothing), a.classes));
  if (a.row_weights) a.row_weights[r] = own;
  if (a.lse) a.lse[r] = log_sum_exp(found, log_sum);
}
