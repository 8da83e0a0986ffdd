// The gradient of grid_sample by the coordinates of a place: sum over channels and taps of g[n, c, place] * slope *
// x[n, c, tap].
#pragma once

#include "dnnarray/core/vec.cuh"
#include "spatial/sampling.cuh"

namespace dnnarray {

// Extents of the image and of the places, and strides of the image, of what was sampled, and of the grid.
struct SlopeView {
  long long batch, channels, depth, height, width, o, p, q;
  long long x_n, x_c, x_d, x_h, x_w, y_n, y_c, y_o, y_p, y_q, d_n, d_c, d_o, d_p, d_q;
};

// kLanes neighbouring threads share a place, each with every kLanes-th vector of kVector channels, and add up in a
// fixed order.
template <typename T, int kRank, int kMode, int kPadding, bool kCorners, int kVector, int kLanes>
struct GridSlopes {
  using A = arithmetic_t<T>;
  using Place = GridPlace<T, kRank, kMode, kPadding, kCorners>;
  using V = Vec<T, kVector>;

  // The derivatives by z, y, x of the values of kVector channels. `pixel` points at their plane.
  static __device__ __forceinline__ void add(A (&slopes)[3], const V& g, const T* pixel, const Place& place,
                                             const SlopeView& view) {
    Place::each([&](int k, int i, int j) {
      const V values = load<T, kVector>(pixel + place.pixel(k, i, j, view.x_d, view.x_h, view.x_w));
      const bool inside = place.inside(k, i, j);
      A along = A(0);
#pragma unroll
      for (int v = 0; v < kVector; ++v) along += (inside ? widen(values.at[v]) : A(0)) * widen(g.at[v]);
      const A around = kRank == 3 ? place.deep.weight[k] : A(1);
      slopes[2] += along * place.across.slope[j] * (around * place.down.weight[i]);
      slopes[1] += along * place.down.slope[i] * (around * place.across.weight[j]);
      if (kRank == 3) slopes[0] += along * place.deep.slope[k] * (place.down.weight[i] * place.across.weight[j]);
    });
  }

  // Thread `index` of all that share the places; all lanes of its warp must come.
  static __device__ __forceinline__ void run(long long index, const T* g, const T* x, const T* grid, T* d,
                                             const SlopeView& view) {
    const long long own = index / kLanes;
    const bool there = own < view.batch * view.o * view.p * view.q;
    long long n = there ? own : 0;
    const Place place(grid + n * kRank, view.depth, view.height, view.width);
    const long long column = split(n, view.q), row = split(n, view.p), slice = split(n, view.o);
    const T* incoming = g + n * view.y_n + slice * view.y_o + row * view.y_p + column * view.y_q;
    A slopes[3] = {};
    for (long long c = index % kLanes * kVector; c < view.channels; c += kLanes * kVector) {
      add(slopes, load<T, kVector>(incoming + c * view.y_c), x + n * view.x_n + c * view.x_c, place, view);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) slopes[i] = warp_sum<kLanes>(slopes[i]);
    if (!there || index % kLanes != 0) return;
    T* result = d + n * view.d_n + slice * view.d_o + row * view.d_p + column * view.d_q;
    result[0] = narrow<T>(slopes[2] * place.across.rate);
    result[view.d_c] = narrow<T>(slopes[1] * place.down.rate);
    if (kRank == 3) result[2 * view.d_c] = narrow<T>(slopes[0] * place.deep.rate);
  }
};

}  // namespace dnnarray
