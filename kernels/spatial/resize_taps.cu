// The taps of each element along the axes that are resampled: first[i], count[i] and `most` weights. kTransposed: of
// each source element.
//
// Layout:  weights (most, elements); a thread owns a tap of an element, a row of blocks an axis. kShares: a row with
//          fewer than `most` taps gives the rest shares of its last one, so that a loop over all `most` (each index cut
//          to the last tap) gives the same sum; shares, not zeros: an infinite tap would turn into NaN beside 0.
// Bound:   latency.

#include "spatial/resize.cuh"
#include "spatial/sampling.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Arithmetic = float;
  static constexpr bool kTransposed = false;
  static constexpr bool kShares = false;
  static constexpr int kThreads = 128;
};
struct Arguments {
  int* first_o;
  int* count_o;
  Config::Arithmetic* weight_o;
  int* first_p;
  int* count_p;
  Config::Arithmetic* weight_p;
  int* first_q;
  int* count_q;
  Config::Arithmetic* weight_q;
  long long most[3];
  long long source[3];
  long long target[3];
  long long options[3];
  double steps[3];
};
#define DNNARRAY_ENTRY spatial_resize_taps_default
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

extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  const long long k = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const int axis = 2 - blockIdx.y;  // the last axis first: the others may be missing
  const bool o = axis == 0, p = axis == 1;
  const Table table{o   ? a.first_o
                    : p ? a.first_p
                        : a.first_q,
                    o   ? a.count_o
                    : p ? a.count_p
                        : a.count_q,
                    o   ? a.weight_o
                    : p ? a.weight_p
                        : a.weight_q,
                    a.most[axis], resize_of(a.source[axis], a.target[axis], a.options[axis], a.steps[axis])};
  table.fill(k);
}
