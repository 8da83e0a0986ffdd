// The gradient of connectionist temporal classification: d[t, n, c] = -g[n] * sum over the states s of class c of
// exp(a(t, s) + b(t, s) - log-likelihood), with the variables of ctc_lattice and the chains of ctc_chains.
//
// Layout:  d by the strides of its steps, batch and classes. A block owns sequence n over kStepsOfBlock steps. The
//          probabilities of a step's labels stand in shared memory; the thread of the first label of a class sums up
//          its chain, so that the order is fixed and nobody else writes there.
// Bound:   memory: the variables read once, the gradient written once.

#include "loss/ctc.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  using Steps = long long;
  using Count = long long;
  static constexpr bool kPadded = true;
  static constexpr bool kSequenceGradients = false;
  static constexpr int kStepsOfBlock = 8;
  static constexpr int kThreads = 128;
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
  const Config::Element* grad;
  const Config::Steps* input_lengths;
  const Config::Count* target_lengths;
  Config::Element* dlog_probs;
};
#define DNNARRAY_ENTRY loss_ctc_gradient_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kThreads = Config::kThreads;

struct Chains {
  const Config::Target* labels;
  const int *next, *first;
  long long count, blank;
};

// The gradient of a step: its classes stand `stride` apart.
struct Row {
  T* d;
  long long classes, stride;

  __device__ __forceinline__ void put(long long c, A value) const { d[c * stride] = narrow<T>(value); }
  __device__ __forceinline__ void fill(A value) const {
    for (long long c = threadIdx.x; c < classes; c += kThreads) put(c, value);
  }
};

// One step: `alpha` and `beta` point at its variables.
__device__ __forceinline__ void put(const Row& row, const A* alpha, const A* beta, A likelihood, A scale,
                                    const Chains& chains, A* occupied, A* shared) {
  row.fill(A(0));
  A blanks = A(0);
  for (long long i = threadIdx.x; i <= chains.count; i += kThreads) {
    blanks += exp2_of(alpha[2 * i] + beta[2 * i] - likelihood);
    if (i < chains.count) occupied[i] = exp2_of(alpha[2 * i + 1] + beta[2 * i + 1] - likelihood);
  }
  blanks = block_reduce<kThreads>(blanks, Sum(), shared);
  __syncthreads();
  if (threadIdx.x == 0) row.put(chains.blank, blanks * scale);
  for (long long i = threadIdx.x; i < chains.count; i += kThreads) {
    if (!chains.first[i]) continue;
    A sum = A(0);
    for (int j = i; j >= 0; j = chains.next[j]) sum += occupied[j];
    row.put(static_cast<long long>(chains.labels[i]), sum * scale);
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads, sizeof(A) == 8 ? 4 : 0)
    DNNARRAY_ENTRY(const Config::Target* __restrict__ targets, const A* __restrict__ losses,
                   const A* __restrict__ lattice, const int* __restrict__ next, const int* __restrict__ first,
                   const __grid_constant__ Arguments a) {
  extern __shared__ char dnn_smem[];
  __shared__ long long sums[kThreads / kWarp];
  __shared__ A shared[kThreads / kWarp];
  const long long n = blockIdx.x % a.batch, begin = blockIdx.x / a.batch * Config::kStepsOfBlock, longest = a.width / 2;
  const CtcSequence sequence =
      ctc_sequence<Config::kPadded, kThreads>(n, a.input_lengths, a.target_lengths, a.steps, a.extent, sums);
  const A loss = losses[n];
  const bool undefined = !sequence.valid || loss != loss, impossible = loss == infinity(A(0));
  const Chains chains{targets + sequence.start, next + n * longest, first + n * longest, sequence.labels, a.blank};
  const A* alpha = lattice + n * a.steps * a.width;
  const A* beta = alpha + a.batch * a.steps * a.width;
  A likelihood = A(0), scale = -widen(a.grad[Config::kSequenceGradients ? n : 0]);
  if (a.mean) scale /= A((sequence.labels > 0 ? sequence.labels : 1) * a.batch);
  if (!undefined && !impossible && sequence.steps > 0) {
    const A* end = alpha + (sequence.steps - 1) * a.width + sequence.states() - 1;
    likelihood = log2_add(end[0], sequence.labels > 0 ? end[-1] : -infinity(A(0)), -infinity(A(0)));
  }
  for (long long t = begin; t < begin + Config::kStepsOfBlock && t < a.steps; ++t) {
    const Row row{a.dlog_probs + t * a.step_stride + n * a.sequence_stride, a.classes, a.class_stride};
    if (!sequence.valid || (undefined && t < sequence.steps)) {
      row.fill(quiet_nan(A(0)));
    } else if (t >= sequence.steps) {
      row.fill(A(0));
    } else if (impossible) {
      row.fill(a.zero_infinity ? A(0) : quiet_nan(A(0)));
    } else {
      put(row, alpha + t * a.width, beta + t * a.width, likelihood, scale, chains, reinterpret_cast<A*>(dnn_smem),
          shared);
    }
  }
}
