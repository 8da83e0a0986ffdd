// out = sum over s of partial[s], brought to another memory and type: the second stage of a weight gradient.
//
// Layout:  partial is splits x n, dense; both it and out by steps along five axes in the order of out, of which one counts groups of kGroup
//          neighbours: they are neighbours in partial and `apart` steps from each other in out. A thread owns such a group, and of the splits
//          every kSlices-th; the first of the kSlices threads of a group adds their sums up.
//          kRepairs: partial lies as (groups K, window, C), and groups with a NaN are computed again by the definition.
// Needs:   n and the steps of partial multiples of kGroup, partial aligned to as many.
// Bound:   memory: partial read once.

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/overlap.cuh"
#include "dnnarray/weight_terms.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Source = float;
  static constexpr bool kRepairs = false;
  static constexpr int kGroup = 8;
  static constexpr int kSlices = 4;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY conv_split_sums_default
#endif

using namespace dnnarray;
using T = Config::Element;
using S = Config::Source;
constexpr int kGroup = Config::kGroup, kSlices = Config::kSlices, kGroups = Config::kThreads / kSlices;
// Blocks of a multiprocessor: as ptxas finds best, which beside the call of a repair are 48 registers, of which some spill (which ones, differs between versions).
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

// The extents count groups; f and t are the steps of partial and of out. What stands behind them is for a repair.
extern "C" __global__ void __launch_bounds__(Config::kThreads, kBlocks)
    DNNARRAY_ENTRY(const float* __restrict__ partial, T* __restrict__ out, long long n, long long groups, long long splits, long long apart,
                   long long n1, long long n2, long long n3, long long n4, long long f0, long long f1, long long f2, long long f3, long long f4,
                   long long t0, long long t1, long long t2, long long t3, long long t4, const S* __restrict__ dy, const S* __restrict__ x,
                   long long images, long long outs, long long channels, long long y_n, long long y_c, long long y_d, long long y_h, long long y_w,
                   long long x_n, long long x_c, long long x_d, long long x_h, long long x_w, long long d0, long long d1, long long d2, long long h0,
                   long long h1, long long h2, long long w0, long long w1, long long w2) {
  partial = after_previous_kernel(partial);
  __shared__ float others[kSlices][kGroups][kGroup];
  const int own = static_cast<int>(threadIdx.x) % kGroups, slice = static_cast<int>(threadIdx.x) / kGroups;
  const long long i = static_cast<long long>(blockIdx.x) * kGroups + own;
  const bool there = i < groups;
  const Strided from = {n1, n2, n3, n4, f0, f1, f2, f3, f4}, to = {n1, n2, n3, n4, t0, t1, t2, t3, t4};
  float sums[kGroup] = {};
  if (there) {
    const float* part = partial + from.at(i);
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
    const ConvAxes axes = {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}};
    const auto fits = [](long long value) { return static_cast<int>(value); };
    const WeightTerms<S> terms = {dy, x, axes, fits(images), fits(outs), fits(channels), {y_n, y_c, y_d, y_h, y_w}, {x_n, x_c, x_d, x_h, x_w}};
    repair({terms, from.at(i), apart, target});
  }
}
