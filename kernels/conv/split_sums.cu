// out = sum over s of partial[s], brought to another memory and type: the second stage of a weight gradient.
//
// Layout:  partial is splits x n, dense; both it and out by steps along five axes in the order of out, of which one
//          counts groups of kGroup neighbours: they are neighbours in partial and `apart` steps from each other in out.
//          A thread owns such a group, and of the splits every kSlices-th; the first of the kSlices threads of a group
//          adds their sums up. kRepairs: partial lies as (groups K, window, C), and groups with a NaN are computed
//          again by the definition.
// Needs:   n and the steps of partial multiples of kGroup, partial aligned to as many.
// Bound:   memory: partial read once.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/overlap.cuh"
#include "conv/weight_terms.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Source = float;
  static constexpr bool kRepairs = false;
  static constexpr int kGroup = 8;
  static constexpr int kSlices = 4;
  static constexpr int kThreads = 256;
};
struct Arguments {
  long long size;
  long long groups;
  long long splits;
  long long apart;
  dnnarray::Strided read;
  dnnarray::Strided written;
  int images;
  int outs;
  int channels;
  dnnarray::Strides y_strides;
  dnnarray::Strides x_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_split_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using S = Config::Source;
constexpr int kGroup = Config::kGroup, kSlices = Config::kSlices, kGroups = Config::kThreads / kSlices;
// Blocks of a multiprocessor: as ptxas finds best, which beside the call of a repair are 48 registers, of which some
// spill (which ones, differs between versions).
constexpr int kBlocks = Config::kRepairs ? 4 : 0;

__device__ __forceinline__ void write(T* target, long long apart, const float (&sums)[kGroup]) {
  Vec<T, kGroup> rounded;
#pragma unroll
  for (int j = 0; j < kGroup; ++j) rounded.at[j] = narrow<T>(sums[j]);
  if (apart == 1) {
    store(target, rounded);
  } else {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) target[j * apart] = rounded.at[j];
  }
}

// A group that is to be written again: it begins with element i of partial.
struct Repair {
  WeightTerms<S> terms;
  long long i, apart;
  T* target;
};
__device__ __noinline__ void repair(const Repair& group) {
  float sums[kGroup];
  group.terms.add_up(group.i, sums);
  write(group.target, group.apart, sums);
}

// `read` and `written` count groups. What stands behind them is for a repair.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kBlocks)
    DNNARRAY_ENTRY(const float* __restrict__ partial, T* __restrict__ out, const S* __restrict__ dy,
                   const S* __restrict__ x, const __grid_constant__ Arguments a) {
  const long long n = a.size, splits = a.splits, apart = a.apart;
  const Strided from = a.read, to = a.written;
  partial = after_previous_kernel(partial);
  __shared__ float others[kSlices][kGroups][kGroup];
  const int own = static_cast<int>(threadIdx.x) % kGroups, slice = static_cast<int>(threadIdx.x) / kGroups;
  const long long i = static_cast<long long>(blockIdx.x) * kGroups + own;
  const bool there = i < a.groups;
  const long long first = there ? from.at(i) : 0;
  float sums[kGroup] = {};
  if (there) {
    const float* part = partial + first;
#pragma unroll 4
    for (long long s = slice; s < splits; s += kSlices) {
      const Vec<float, kGroup> reg = load_wide<float, kGroup>(part + s * n);
#pragma unroll
      for (int j = 0; j < kGroup; ++j) sums[j] += reg.at[j];
    }
  }
  if constexpr (kSlices > 1) {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) others[slice][own][j] = sums[j];
    __syncthreads();
    if (slice > 0) return;
    for (int s = 1; s < kSlices; ++s)
#pragma unroll
      for (int j = 0; j < kGroup; ++j) sums[j] += others[s][own][j];
  }
  if (!there) return;
  T* target = out + to.at(i);
  write(target, apart, sums);
  if constexpr (Config::kRepairs) {
    bool strange = false;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) strange |= sums[j] != sums[j];
    if (!strange) return;
    const WeightTerms<S> terms = {dy, x, a.axes, a.images, a.outs, a.channels, a.y_strides, a.x_strides};
    repair({terms, first, apart, target});
  }
}
