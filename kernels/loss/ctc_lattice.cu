// Forward or backward variables of connectionist temporal classification, one step after the other, in logarithms to
// base 2.
//
// The states of a target of L labels are blank, label 1, blank, ..., label L, blank. With e(t, s) the log-probability
// of the class of state s at step t:  a(t, s) = e(t, s) + log(exp a(t-1, s) + exp a(t-1, s-1) + exp a(t-1, s-2)), the
// last term only where it skips a blank between two different labels. Backward variables are the same recursion over
// steps and labels in reverse, kept without the emission of their own step.
//
// Layout:  log_probs by the strides of its steps, batch and classes. Block (n, direction) owns sequence n; a thread
//          owns kStates states kThreads apart. Two copies of the variables in shared memory, with two states before the
//          first; one barrier a step. Emissions are read kAhead steps ahead. kKeep: the variables of all steps go to
//          lattice (direction, batch, steps, states).
// Needs:   width, the states of the longest target that has an alignment, of at most kThreads * kStates.
// Bound:   latency of a step, some 200 cycles; blocks run side by side.

#include "loss/ctc.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  using Steps = long long;
  using Count = long long;
  using Loss = float;
  static constexpr bool kKeep = false;
  static constexpr bool kPadded = true;
  static constexpr int kStates = 1;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long batch;
  long long steps;
  long long classes;
  long long extent;
  long long blank;
  long long width;
  long long step_stride;
  long long sequence_stride;
  long long class_stride;
  long long zero_infinity;
  long long mean;
};
#define DNNARRAY_ENTRY loss_ctc_lattice_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kStates = Config::kStates, kThreads = Config::kThreads;
constexpr int kAhead = kStates == 1 ? 8 : (kStates == 2 ? 4 : 2);
constexpr int kPad = 2;  // states before the first

struct State {
  long long label;
  bool there, skip;
};

struct Strides {
  long long step, sequence, label;
};

// Whether a label names no class, or the blank.
__device__ __forceinline__ bool wrong_label(const Config::Target* labels, long long count, long long classes,
                                            long long blank) {
  bool wrong = false;
  for (long long i = threadIdx.x; i < count; i += kThreads) {
    const long long label = labels[i];
    wrong |= label < 0 || label >= classes || label == blank;
  }
  return wrong;
}

// The states of this thread; the labels in reverse for the backward variables.
__device__ __forceinline__ void prepare(State (&states)[kStates], const Config::Target* labels,
                                        const CtcSequence& sequence, bool reverse, long long blank) {
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    const long long s = threadIdx.x + k * kThreads, i = s / 2, last = sequence.labels - 1;
    states[k] = {blank, s < sequence.states(), false};
    if (!states[k].there || s % 2 == 0) continue;
    states[k].label = static_cast<long long>(labels[reverse ? last - i : i]);
    states[k].skip = i == 0 || states[k].label != static_cast<long long>(labels[reverse ? last - i + 1 : i - 1]);
  }
}

// Emissions of kAhead steps from `step` on; steps behind the last are not looked at.
__device__ __forceinline__ void emissions(A (&found)[kAhead][kStates], const State (&states)[kStates],
                                          const T* log_probs, const Strides& strides, long long step, long long steps,
                                          bool reverse) {
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    const long long t = reverse ? steps - 1 - (step + u) : step + u;
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      found[u][k] = step + u < steps && states[k].there
                        ? widen(log_probs[t * strides.step + states[k].label * strides.label])
                        : A(0);
      found[u][k] *= Base2<A>::log2_e();
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ log_probs, const Config::Target* __restrict__ targets,
                   const Config::Steps* __restrict__ input_lengths, const Config::Count* __restrict__ target_lengths,
                   Config::Loss* __restrict__ losses, A* __restrict__ lattice, const __grid_constant__ Arguments a) {
  extern __shared__ char dnn_smem[];
  __shared__ long long sums[kThreads / kWarp];
  const bool reverse = blockIdx.y != 0;
  const Strides strides{a.step_stride, a.sequence_stride, a.class_stride};
  const long long n = blockIdx.x;
  const CtcSequence sequence =
      ctc_sequence<Config::kPadded, kThreads>(n, input_lengths, target_lengths, a.steps, a.extent, sums);
  const Config::Target* labels = targets + sequence.start;
  const bool wrong = !sequence.valid || wrong_label(labels, sequence.labels, a.classes, a.blank);
  const bool undefined = __syncthreads_or(wrong);
  if (undefined || sequence.states() > a.width) {  // more labels than steps: no alignment
    const A loss = undefined ? quiet_nan(A(0)) : a.zero_infinity ? A(0) : infinity(A(0));
    if (threadIdx.x == 0 && !reverse) losses[n] = narrow<Config::Loss>(loss);
    return;
  }
  State states[kStates];
  prepare(states, labels, sequence, reverse, a.blank);

  A* before = reinterpret_cast<A*>(dnn_smem) + kPad;
  A* after = before + kPad + a.width;
  // All is in the state before the first, from where the first blank and, as if it skipped one, the first label are
  // reached.
  for (long long s = static_cast<int>(threadIdx.x) - kPad; s < a.width; s += kThreads) {
    before[s] = s == -1 ? A(0) : -infinity(A(0));
    after[s] = -infinity(A(0));
  }
  const T* own = log_probs + n * strides.sequence;
  A* kept = lattice + ((reverse ? a.batch : 0) + n) * a.steps * a.width;
  A emission[kAhead][kStates], next[kAhead][kStates];
  emissions(next, states, own, strides, 0, sequence.steps, reverse);
  __syncthreads();
  for (long long first = 0; first < sequence.steps; first += kAhead) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int k = 0; k < kStates; ++k) emission[u][k] = next[u][k];
    }
    emissions(next, states, own, strides, first + kAhead, sequence.steps, reverse);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (first + u >= sequence.steps) break;
      const long long step = reverse ? sequence.steps - 1 - (first + u) : first + u;
#pragma unroll
      for (int k = 0; k < kStates; ++k) {
        if (!states[k].there) continue;
        const long long s = threadIdx.x + k * kThreads;
        const A reached = log2_add(before[s], before[s - 1], states[k].skip ? before[s - 2] : -infinity(A(0)));
        const A here = reached + emission[u][k];
        after[s] = here;
        if (Config::kKeep) kept[step * a.width + (reverse ? sequence.states() - 1 - s : s)] = reverse ? reached : here;
      }
      __syncthreads();
      A* other = before;
      before = after;
      after = other;
      if (first + u == 0 && threadIdx.x == 0) after[-1] = -infinity(A(0));  // read in this step only
    }
  }
  if (threadIdx.x != 0 || reverse) return;
  const long long end = sequence.states() - 1;
  A loss = A(0) - log2_add(before[end], before[end - 1], -infinity(A(0))) * Base2<A>::ln_2();
  if (a.zero_infinity && loss == infinity(A(0))) loss = A(0);
  if (a.mean && sequence.labels > 0) loss /= A(sequence.labels);
  losses[n] = narrow<Config::Loss>(loss);
}
