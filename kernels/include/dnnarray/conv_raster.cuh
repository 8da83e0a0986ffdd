// Tiles of convolutions of stride 1 on rasters, behind tensor maps whose corners make every tap along the last two axes a shift of places: what the
// kernels that keep an input for all taps of a plane have in common.
#pragma once

#include "dnnarray/conv_tma.cuh"

namespace dnnarray {

// Launch arguments: rasters of each plane, rows of `pitch` places, `height` rows; `reach` places from the first tap to the last.
template <typename Config>
struct Raster {
  Target<typename Config::Element, typename Config::Result> target;
  TmaWeight weight;
  ConvAxes axes;
  long long images;
  int pitch, height, reach;

  // Of a place of the rasters, in the result.
  __device__ __forceinline__ WindowPlace where(long long m) const {
    const Split by_w = split(m, pitch), by_h = split(by_w.quotient, height), by_d = split(by_h.quotient, axes.d.out);
    return {0, by_w.rest, by_h.rest, by_d.rest, static_cast<int>(by_d.quotient)};
  }
  // Where the channels of a place begin in the result, or -1.
  __device__ __forceinline__ long long at(const WindowPlace& p) const {
    if (p.w >= axes.w.out || p.h >= axes.h.out || p.n >= images) return -1;
    return p.n * target.y_n + p.d * target.y_d + p.h * target.y_h + p.w * target.y_w;
  }
  __device__ __forceinline__ long long at(long long m) const { return at(where(m)); }
  __device__ __forceinline__ void advance(WindowPlace& p, int places) const {
    for (p.w += places; p.w >= pitch; p.w -= pitch) {
      if (++p.h < height) continue;
      p.h = 0;
      if (++p.d < axes.d.out) continue;
      p.d = 0, ++p.n;
    }
  }
};

// Where things lie in shared memory: two input buffers, the ring of weights, the barriers.
template <typename Config>
struct RasterShared {
  using C = TmaTile<Config>;
  static constexpr int kStages = Config::kStages;
  unsigned input, input_bytes, rows, weight, input_full, input_empty, full, empty;

  __device__ __forceinline__ RasterShared(unsigned first, int reach) : input(first), rows(Config::kTileM + reach) {
    input_bytes = (rows * C::kRow + 1023) & ~1023u;
    weight = input + 2 * input_bytes;
    input_full = weight + kStages * C::kBytesN;
    input_empty = input_full + 16;
    full = input_empty + 16;
    empty = full + kStages * 8;
  }

  // By one thread.
  __device__ __forceinline__ void init(int consumers) const {
    for (int i = 0; i < 2 + kStages; ++i) {
      barrier_init(i < 2 ? input_full + i * 8 : full + (i - 2) * 8, 1);
      barrier_init(i < 2 ? input_empty + i * 8 : empty + (i - 2) * 8, consumers);
    }
    barrier_init_done();
  }
};

// The input of 64 channels and a tap along the first axis, and the weights of the taps there, one after another.
template <typename Config>
__device__ __forceinline__ void ask_raster(const Raster<Config>& a, const TensorMap& x, const TensorMap& weight, const TmaPlace& tile,
                                           const RasterShared<Config>& smem, Ring<2>& inputs, Ring<Config::kStages>& ring) {
  using C = TmaTile<Config>;
  const ConvAxis &d = a.axes.d, &h = a.axes.h, &w = a.axes.w;
  WindowPlace place = a.where(tile.m);
  place.w -= w.before, place.h -= h.before, place.d = place.d * d.stride - d.before;
  for (int t = 0; t < d.window; ++t) {
    const TapPlace offset = {0, 0, static_cast<unsigned short>(t * d.dilation)};
    for (int c = 0; c < a.weight.channels; c += C::kTileK) {
      const unsigned full = smem.input_full + inputs.stage * 8;
      barrier_wait(smem.input_empty + inputs.stage * 8, inputs.parity ^ 1);
      barrier_expect(full, smem.rows * C::kRow);
      place.c = tile.group * a.weight.channels + c;
      copy_windows<Config::kAxes>(smem.input + inputs.stage * smem.input_bytes, x, full, place, offset);
      inputs.next();
      Place tap = {0, 0, 0};
      do {
        const unsigned arrived = smem.full + ring.stage * 8;
        barrier_wait(smem.empty + ring.stage * 8, ring.parity ^ 1);
        barrier_expect(arrived, C::kBytesN);
        C::ask_weight(a.weight, weight, tile, {t, tap.h, tap.w}, c, a.target.outs, smem.weight + ring.stage * C::kBytesN, arrived);
        ring.next();
      } while (!tap.next(1, h.window, w.window));
    }
  }
}

// What the matrix units have done with is given back one step later.
template <typename Config>
struct RasterRelease {
  unsigned weight, input;

  __device__ __forceinline__ void run() {
    if (weight != 0) TmaTile<Config>::release(weight);
    if (input != 0) TmaTile<Config>::release(input);
    weight = input = 0;
  }
};

// `products(places, weight)` issues those of a tap, whose places begin `first` bytes into an input; `planes` inputs, one after another. The last
// ones are given back by whoever waits for them.
template <typename Config, typename Products>
__device__ __forceinline__ RasterRelease<Config> walk_raster(const Raster<Config>& a, int planes, unsigned first, const RasterShared<Config>& smem,
                                                             Ring<2>& inputs, Ring<Config::kStages>& ring, Products products) {
  using C = TmaTile<Config>;
  RasterRelease<Config> waiting = {0, 0};
  for (int i = 0; i < planes; ++i) {
    const unsigned input = smem.input + inputs.stage * smem.input_bytes + first;
    barrier_wait(smem.input_full + inputs.stage * 8, inputs.parity);
    for (int r = 0; r < a.axes.h.window; ++r)
      for (int s = 0; s < a.axes.w.window; ++s) {
        barrier_wait(smem.full + ring.stage * 8, ring.parity);
        products(input + (r * a.axes.h.dilation * a.pitch + s * a.axes.w.dilation) * C::kRow, smem.weight + ring.stage * C::kBytesN);
        wgmma_wait<1>();
        waiting.run();
        waiting.weight = smem.empty + ring.stage * 8;
        ring.next();
      }
    waiting.input = smem.input_empty + inputs.stage * 8;
    inputs.next();
  }
  return waiting;
}

}  // namespace dnnarray
