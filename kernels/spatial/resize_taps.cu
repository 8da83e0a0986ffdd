// The taps of each element along one axis: first[i], count[i] and `most` weights. kTransposed: of each source element.
//
// Layout:  weights (most, elements); a thread owns a tap of an element. kShares: a row with fewer than `most` taps gives the rest shares
//          of its last one, so that a loop over all `most` (each index cut to the last tap) gives the same sum; shares, not zeros: an
//          infinite tap would turn into NaN beside 0.
// Bound:   latency.

#include "dnnarray/resize.cuh"
#include "dnnarray/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Arithmetic = float;
  static constexpr bool kTransposed = false;
  static constexpr bool kShares = false;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY resize_taps_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(int* __restrict__ first, int* __restrict__ count, Config::Arithmetic* __restrict__ weights, long long most,
                   long long source, long long target, long long mode, long long corners, long long whole, double step) {
  const Resize resize{source, target, mode, corners, whole, step};
  long long k = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const long long i = split(k, Config::kTransposed ? source : target);
  if (k >= most) return;
  const Taps found = taps_of<Config::kTransposed>(resize, i);
  if (k == 0) {
    first[i] = static_cast<int>(found.first);
    count[i] = static_cast<int>(found.count);
  }
  const long long tap = found.first + (k < found.count ? k : found.count - 1);
  const double share = !Config::kShares || k < found.count - 1 ? 1.0 : static_cast<double>(most - found.count + 1);
  double weight = 0.0;
  if (found.count > 0) weight = weight_of<Config::kTransposed>(resize, i, tap) / share;
  weights[k * (Config::kTransposed ? source : target) + i] = static_cast<Config::Arithmetic>(weight);
}
