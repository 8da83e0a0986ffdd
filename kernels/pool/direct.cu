// Pooling: y = the maximum (with its place), mean or Lp norm of the elements of x in each window.
//
// Layout:  memory in any dense order, given by strides. A thread owns one window of kVector neighbouring channels
//          (channels-last) or of one channel. A block owns kRows output rows by kColumns neighbours (window and
//          channels, the channels fastest), so that overlapping windows meet in the first-level cache.
// Needs:   pointers and the channel extent aligned to kVector elements; padded extents and windows below 2^30.
// Bound:   memory: x read once, y written once. Windows of 2 or 3 (kWindow) have all loads in flight at once, others
//          those of a row of up to kFlight taps; where both are 0, loops.

#include "pool/window.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Result = float;
  using Place = int;
  static constexpr int kReduction = 0;
  static constexpr bool kMagnitude = false;
  static constexpr bool kAdaptive = false;
  static constexpr int kWindow = 3;
  static constexpr int kFlight = 0;
  static constexpr int kVector = 4;
  static constexpr int kColumns = 32;
  static constexpr int kRows = 4;
};
struct Arguments {
  long long rows;
  int planes;
  int inner;
  dnnarray::Strides x_strides;
  dnnarray::Strides y_strides;
  dnnarray::Axis<Config::kAdaptive> d;
  dnnarray::Axis<Config::kAdaptive> h;
  dnnarray::Axis<Config::kAdaptive> w;
  int padded;
  double p;
};
#define DNNARRAY_ENTRY pool_direct_default
#endif

using namespace dnnarray;
using T = Config::Element;
using N = Number<T>;
using A = N::type;
using Place = Config::Place;
constexpr int kVector = Config::kVector, kRow = Config::kFlight;
constexpr int kFlight =
    sizeof(T) * kVector < 16 ? 8 : 4;  // loads under way at once, of rows that are not fetched as a whole
using V = Vec<T, kVector>;
using WindowAxis = Axis<Config::kAdaptive>;

// What kReduction says: the maximum; with its flat position in space; only the tap it stands at; the mean; the Lp norm.
constexpr int kMax = 0, kIndices = 1, kTap = 2, kMean = 3, kNorm = 4;
constexpr int kReduction = Config::kReduction;
constexpr bool kPlaces = kReduction == kIndices || kReduction == kTap;

struct Accumulator {
  A value[kVector];
  Place place[kVector];

  __device__ __forceinline__ Accumulator(A initial, Place first) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) value[j] = initial, place[j] = first;
  }

  __device__ __forceinline__ void maximum(const V& x, Place at) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const A v = Config::kMagnitude ? magnitude(N::widened(x.at[j])) : N::widened(x.at[j]);
      const bool better = kPlaces && wins(v, value[j]);
      value[j] = !kPlaces ? larger(value[j], v) : better ? v : value[j];
      place[j] = better ? at : place[j];
    }
  }

  __device__ __forceinline__ void add(const V& x) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) value[j] += N::widened(x.at[j]);
  }

  __device__ __forceinline__ void add_power(const V& x, const A (&scale)[kVector], A p) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) value[j] += power<A>(magnitude(N::widened(x.at[j])) / scale[j], p);
  }
};

struct Window {
  const T* x;  // the place of tap 0 in every axis, which may lie outside
  long long d_step, h_step, w_step;
  Taps d, h, w;
  int h_taps, w_taps;

  // visit(vector, d, h, w) for each tap inside, in order.
  template <typename Visit>
  __device__ __forceinline__ void each(Visit visit) const {
    if constexpr (Config::kWindow > 0) {
      constexpr int kSide = Config::kWindow > 0 ? Config::kWindow : 1;
      V reg_x[kSide][kSide];
#pragma unroll
      for (int r = 0; r < kSide; ++r)
#pragma unroll
        for (int s = 0; s < kSide; ++s)
          if (r >= h.first && r < h.last && s >= w.first && s < w.last)
            reg_x[r][s] = load<T, kVector>(x + r * h_step + s * w_step);
#pragma unroll
      for (int r = 0; r < kSide; ++r)
#pragma unroll
        for (int s = 0; s < kSide; ++s)
          if (r >= h.first && r < h.last && s >= w.first && s < w.last) visit(reg_x[r][s], 0, r, s);
    } else {
      for (int o = d.first; o < d.last; ++o)
        for (int r = h.first; r < h.last; ++r) {
          const T* row = x + o * d_step + r * h_step;
          if constexpr (kRow > 0) {
            V reg_x[kRow > 0 ? kRow : 1];
#pragma unroll
            for (int s = 0; s < kRow; ++s)
              if (s >= w.first && s < w.last) reg_x[s] = load<T, kVector>(row + s * w_step);
#pragma unroll
            for (int s = 0; s < kRow; ++s)
              if (s >= w.first && s < w.last) visit(reg_x[s], o, r, s);
            continue;
          }
#pragma unroll kFlight
          for (int s = w.first; s < w.last; ++s) visit(load<T, kVector>(row + s * w_step), o, r, s);
        }
    }
  }
};

// `y` gets values, `places` int64 positions or the number of the tap; the one that is not asked for is not touched.
extern "C" __global__ void __launch_bounds__(Config::kColumns* Config::kRows, 4)
    DNNARRAY_ENTRY(const T* __restrict__ x, Config::Result* __restrict__ y, long long* __restrict__ indices,
                   const __grid_constant__ Arguments a) {
  const WindowAxis axis_d = a.d, axis_h = a.h, axis_w = a.w;
  const int planes = a.planes, inner = a.inner;
  const Strides sx = a.x_strides, sy = a.y_strides;
  const Split column =
      split(static_cast<long long>(blockIdx.x) * Config::kColumns + threadIdx.x % Config::kColumns, inner);
  if (column.quotient >= axis_w.outputs) return;
  const int q = static_cast<int>(column.quotient);
  const Taps w = axis_w.taps(q);

  for (long long row = static_cast<long long>(blockIdx.y) * Config::kRows + threadIdx.x / Config::kColumns;
       row < a.rows; row += static_cast<long long>(gridDim.y) * Config::kRows) {
    const Split by_h = split(row, axis_h.outputs), by_d = split(by_h.quotient, axis_d.outputs),
                by_c = split(by_d.quotient, planes);
    const Taps h = axis_h.taps(by_h.rest), d = axis_d.taps(by_d.rest);
    const T* from = x + by_c.quotient * sx.n + by_c.rest * sx.c + d.start * sx.d + h.start * sx.h + w.start * sx.w +
                    column.rest * kVector;
    const long long to = by_c.quotient * sy.n + by_c.rest * sy.c + by_d.rest * sy.d + by_h.rest * sy.h + q * sy.w +
                         column.rest * kVector;
    const Window window{from, axis_d.dilation * sx.d, axis_h.dilation * sx.h, axis_w.dilation * sx.w, d, h,
                        w,    axis_h.window,          axis_w.window};

    const auto place_of = [&](int o, int r, int s) {
      if constexpr (kReduction == kTap) return (Place(o) * axis_h.window + r) * axis_w.window + s;
      const Place plane = Place(d.start + o * axis_d.dilation) * axis_h.extent + (h.start + r * axis_h.dilation);
      return plane * axis_w.extent + (w.start + s * axis_w.dilation);
    };
    const bool empty = d.first == d.last || h.first == h.last || w.first == w.last;
    const Place first = empty ? Place(-1) : place_of(d.first, h.first, w.first);
    const A p = A(a.p);
    Accumulator result(kReduction == kMean || Config::kMagnitude ? A(0) : N::lowest(), first);
    if constexpr (kReduction == kMean) {
      window.each([&](const V& v, int, int, int) { result.add(v); });
      const A share =
          inverse(A(axis_d.count(d, a.padded)) * A(axis_h.count(h, a.padded)) * A(axis_w.count(w, a.padded)));
#pragma unroll
      for (int j = 0; j < kVector; ++j) result.value[j] *= share;
    } else {
      window.each([&](const V& v, int o, int r, int s) { result.maximum(v, kPlaces ? place_of(o, r, s) : Place(0)); });
    }
    if constexpr (kReduction == kNorm) {
      A scale[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const A largest = result.value[j];
        scale[j] = largest > A(0) && largest - largest == A(0) ? largest : A(1);
        result.value[j] = A(0);
      }
      window.each([&](const V& v, int, int, int) { result.add_power(v, scale, p); });
#pragma unroll
      for (int j = 0; j < kVector; ++j) result.value[j] = scale[j] * root(result.value[j], p);
    }

    using R = Config::Result;
    Vec<R, kVector> reg_y;
#pragma unroll
    for (int j = 0; j < kVector; ++j) reg_y.at[j] = kept<kReduction == kTap, R>(result.value[j], result.place[j]);
    store_wide(y + to, reg_y);
    if constexpr (kReduction == kIndices) {
      Vec<long long, kVector> reg_indices;
#pragma unroll
      for (int j = 0; j < kVector; ++j) reg_indices.at[j] = result.place[j];
      store_wide(indices + to, reg_indices);
    }
  }
}
