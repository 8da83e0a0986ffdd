// The results that tiles of transforms hold: y[o, i, p] = scale * in[o, i, t, q - t * step] with q = p * spread and t = q / step.
//
// Layout:  in dense; y by its strides, which may be negative. A thread owns one element of y, neighbours along the
//          last axis beside each other.
// Needs:   nothing.
// Bound:   memory: y written once, what it takes of `in` read once.

#include "dnnarray/conv.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY conv_fourier_result_default
#endif

using namespace dnnarray;

// One axis. The launch arguments are pairs: (tiles, places of a tile), (extent of y, step), and the spread.
struct ResultAxis {
  int tiles, size, extent, step, spread;

  __device__ __forceinline__ ResultAxis(long long tile, long long walk, long long spread)
      : tiles(high(tile)), size(low(tile)), extent(high(walk)), step(low(walk)), spread(static_cast<int>(spread)) {}

  // The tile and the place in it.
  __device__ __forceinline__ Split place(int p) const {
    return tiles == 1 ? Split{0, p * spread} : split(static_cast<long long>(p) * spread, step);
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const float* __restrict__ in, float* __restrict__ y, long long total, long long inner, long long y_o, long long y_i,
                   long long y_d, long long y_h, long long y_w, long long d0, long long d1, long long d2, long long h0, long long h1,
                   long long h2, long long w0, long long w1, long long w2, double scale) {
  const ResultAxis d(d0, d1, d2), h(h0, h1, h2), w(w0, w1, w2);
  const long long i = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (i >= total) return;
  const Split by_p = split(i, d.extent * h.extent * w.extent), by_i = split(by_p.quotient, static_cast<int>(inner));
  const Place p = Place::of(by_p.rest, h.extent, w.extent);
  const Split at_d = d.place(p.d), at_h = h.place(p.h), at_w = w.place(p.w);
  const long long tile = (at_d.quotient * h.tiles + at_h.quotient) * w.tiles + at_w.quotient;
  const int volume = d.size * h.size * w.size, u = (at_d.rest * h.size + at_h.rest) * w.size + at_w.rest;
  const float value = in[(by_p.quotient * (d.tiles * h.tiles * w.tiles) + tile) * volume + u];
  y[by_i.quotient * y_o + by_i.rest * y_i + p.d * y_d + p.h * y_h + p.w * y_w] = value * static_cast<float>(scale);
}
