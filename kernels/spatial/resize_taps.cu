// The taps of each element along the axes that are resampled: first[i], count[i] and `most` weights. kTransposed: of each source element.
//
// Layout:  weights (most, elements); a thread owns a tap of an element, a row of blocks an axis. kShares: a row with fewer than `most` taps gives
//          the rest shares of its last one, so that a loop over all `most` (each index cut to the last tap) gives the same sum; shares, not zeros:
//          an infinite tap would turn into NaN beside 0.
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
using A = Config::Arithmetic;

struct Table {
  int *first, *count;
  A* weights;
  long long most;
  Resize resize;

  // The taps of the element that `k`, a number of a tap of all elements, belongs to.
  __device__ __forceinline__ void fill(long long k) const {
    const long long elements = Config::kTransposed ? resize.source : resize.target, i = split(k, elements);
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
    weights[k * elements + i] = static_cast<A>(weight);
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(int* __restrict__ first_o, int* __restrict__ count_o, A* __restrict__ weights_o, int* __restrict__ first_p,
                   int* __restrict__ count_p, A* __restrict__ weights_p, int* __restrict__ first_q, int* __restrict__ count_q,
                   A* __restrict__ weights_q, long long most_o, long long most_p, long long most_q, long long source_o, long long source_p,
                   long long source_q, long long target_o, long long target_p, long long target_q, long long options_o, long long options_p,
                   long long options_q, double step_o, double step_p, double step_q) {
  const long long k = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const bool o = blockIdx.y == 2, p = blockIdx.y == 1;  // the last axis first: the others may be missing
  const Table table{o ? first_o : p ? first_p : first_q, o ? count_o : p ? count_p : count_q, o ? weights_o : p ? weights_p : weights_q,
                    o ? most_o : p ? most_p : most_q,
                    resize_of(o ? source_o : p ? source_p : source_q, o ? target_o : p ? target_p : target_q,
                              o ? options_o : p ? options_p : options_q, o ? step_o : p ? step_p : step_q)};
  table.fill(k);
}
