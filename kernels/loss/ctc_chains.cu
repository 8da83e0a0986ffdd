// Of each label of each target the next place of the same label: next[n, i] = min { j > i : label j = label i }, or -1;
// and first[n, i] = 1 where it has none before, else 0.
//
// Layout:  block n owns sequence n; a thread the labels kThreads apart. What it finds does not depend on the order of
//          anything.
// Bound:   latency; the search is quadratic in the length of a target, in L1.

#include "loss/ctc.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Target = long long;
  using Steps = long long;
  using Count = long long;
  static constexpr bool kPadded = true;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long steps;
  long long extent;
  long long longest;
};
#define DNNARRAY_ENTRY loss_ctc_chains_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const Config::Target* __restrict__ targets, const Config::Steps* __restrict__ input_lengths,
                   const Config::Count* __restrict__ target_lengths, int* __restrict__ next, int* __restrict__ first,
                   const __grid_constant__ Arguments a) {
  __shared__ long long sums[Config::kThreads / kWarp];
  const long long n = blockIdx.x;
  const CtcSequence sequence =
      ctc_sequence<Config::kPadded, Config::kThreads>(n, input_lengths, target_lengths, a.steps, a.extent, sums);
  if (!sequence.valid || sequence.labels > a.longest) return;
  const Config::Target* labels = targets + sequence.start;
  for (int i = threadIdx.x; i < sequence.labels; i += Config::kThreads) {
    int j = i + 1, k = i - 1;
    while (j < sequence.labels && labels[j] != labels[i]) ++j;
    while (k >= 0 && labels[k] != labels[i]) --k;
    next[n * a.longest + i] = j < sequence.labels ? j : -1;
    first[n * a.longest + i] = k < 0;
  }
}
