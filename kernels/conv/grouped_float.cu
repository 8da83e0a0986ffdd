// Convolution of groups of few channels on the ordinary units: y[n, k, p] = f(sum over taps and c of the group of x[n, c, p * stride +
// tap * dilation - before] * w[k, c, tap] + bias[k] + residual[n, k, p]).
//
// Layout:  x, y and residual with dense channels, the rest by steps; w by steps. A slab (grouped.cuh) is made of quads of channels; between
//          different groups its weights are zero. A block of kThreads has `across` slabs and stays for many tiles, whose boxes come one ahead.
//          A thread has one quad of outputs and kPixels pixels; threads beside each other have neighbouring quads, then neighbouring pixels.
// Needs:   float32; channels of all groups in whole quads, pointers aligned to 16 bytes; images of less than 2^31 elements.
// Bound:   memory (x and y once) for thin groups, else float32 arithmetic. What is NaN, since an infinity met one of the zeros, is computed
//          again by the definition.

#include "dnnarray/activation.cuh"
#include "dnnarray/grouped.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Activation = dnnarray::Identity;
  static constexpr bool kResidual = false;
  static constexpr int kPixels = 8;
  static constexpr int kThreads = 256;
};
#define DNNARRAY_ENTRY conv_grouped_float_default
#endif

using namespace dnnarray;
constexpr int kPixels = Config::kPixels, kThreads = Config::kThreads, kQuad = 4;
using Arguments = GroupedArguments<float, float>;

extern __shared__ uint4 smem_memory[];

// (slab, item, input of the quad, output): four outputs of a quad side by side.
__device__ __forceinline__ void pack_weights(float* smem, const Arguments& a, int items) {
  const GroupedSlabs& s = a.slabs;
  const int outs = s.out * kQuad, words = s.across * items * kQuad * outs;
#pragma unroll 4
  for (int i = threadIdx.x; i < words; i += kThreads) {
    const int by_out = i / outs, by_slab = by_out / kQuad / items, item = by_out / kQuad - by_slab * items, tap = item / s.in;
    const int out = i - by_out * outs;
    smem[i] = a.of_input(a.weights(by_slab, tap, out), (item - tap * s.in) * kQuad + by_out % kQuad, out);
  }
}

// Block b has the slabs of range b % ranges and each so-many-th tile of `depths` x `rows` x `columns` outputs.
extern "C" __global__ void __launch_bounds__(kThreads, 2) DNNARRAY_ENTRY(
    const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, const float* __restrict__ residual,
    float* __restrict__ y, long long batch, long long groups, long long c, long long k, long long together, long long across, long long ranges,
    long long depths, long long rows, long long columns, long long x_n, long long x_d, long long x_h, long long x_w, long long y_n,
    long long y_d, long long y_h, long long y_w, long long w_group, long long w_k, long long w_c, long long w_d, long long w_h, long long w_w,
    long long d0, long long d1, long long d2, long long h0, long long h1, long long h2, long long w0, long long w1, long long w2, double p,
    double q) {
  const auto i32 = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const int by_range = blockIdx.x / i32(ranges), range = blockIdx.x - by_range * i32(ranges);
  const GroupedSlabs slabs{i32(groups), i32(c), i32(k), i32(together), i32(together * c) / kQuad, i32(together * k) / kQuad, i32(across),
                           range * i32(across), 0};
  const Arguments a{x, weight, bias, residual, y, {{d0, d1, d2}, {h0, h1, h2}, {w0, w1, w2}}, slabs, {w_group, w_k, w_c, w_d, w_h, w_w},
                    {x_n, 0, x_d, x_h, x_w}, {y_n, 0, y_d, y_h, y_w}, float(p), float(q)};
  const Tiling tiles(i32(depths), i32(rows), i32(columns), a.axes);
  const Box box = tiles.box(a.axes, slabs.across * slabs.in);
  const int items = a.axes.d.window * a.axes.h.window * a.axes.w.window * slabs.in;
  const PieceShare share(kThreads, slabs.across * slabs.out);  // quads of outputs
  const int chunk = share.step * kPixels, pixels = (tiles.depths * tiles.rows * tiles.columns + chunk - 1) / chunk * chunk;

  unsigned char* smem = reinterpret_cast<unsigned char*>(smem_memory);
  float* smem_w = reinterpret_cast<float*>(smem + 2 * box.bytes());
  TilePixel* smem_pixels = reinterpret_cast<TilePixel*>(smem_w + slabs.across * items * slabs.out * kQuad * kQuad);
  int* smem_items = reinterpret_cast<int*>(smem_pixels + pixels);

  const int first_channel = slabs.first * slabs.in * kQuad;
  const BoxSource source{i32(x_d), i32(x_h), i32(x_w), a.axes.d.space, a.axes.h.space, a.axes.w.space, slabs.groups * slabs.c - first_channel};
  const GroupedFixed<float>& fixed = keep(GroupedFixed<float>{tiles, a.axes, {x + first_channel, x_n, source, box}});
  const int count = i32(batch) * tiles.deep * tiles.down * tiles.across, step = gridDim.x / i32(ranges);
  const auto bring = [&](int index, int stage) {
    const TilePlace tile(index, fixed.tiles);
    fixed.x.bring<kThreads>(shared_address(smem) + stage * fixed.x.box.bytes(), tile.image, tile.inputs(fixed.axes));
  };
  if (by_range < count) bring(by_range, 0);
  copies_commit();
  list_pixels<kThreads>(smem_pixels, pixels, tiles, a.axes, box);
  list_items<kThreads>(smem_items, items, items, slabs.in, a.axes, box);
  pack_weights(smem_w, a, items);

  const int slab = share.vector / slabs.out, own = share.vector - slab * slabs.out;
  const int channel = ((slabs.first + slab) * slabs.out + own) * kQuad;
  const bool there = channel < slabs.groups * slabs.k && share.first < share.step;
  float start[kQuad];
#pragma unroll
  for (int j = 0; j < kQuad; ++j) start[j] = bias && there ? bias[channel + j] : 0.0f;
  const float* of_slab = smem_w + (slab * items * kQuad * slabs.out + own) * kQuad;
  int stage = 0;
  for (int index = by_range; index < count; index += step, stage ^= 1) {
    if (index + step < count) bring(index + step, stage ^ 1);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    const TilePlace tile(index, tiles);
    const unsigned char* smem_x = smem + stage * box.bytes() + slab * slabs.in * 16;
    for (int at = share.first; at < pixels && there; at += chunk) {
      float sum[kPixels][kQuad];
      const unsigned char* from[kPixels];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        from[i] = smem_x + smem_pixels[at + i * share.step].offset;
#pragma unroll
        for (int j = 0; j < kQuad; ++j) sum[i][j] = start[j];
      }
      const float* w_item = of_slab;
#pragma unroll 1
      for (int item = 0; item < items; ++item, w_item += kQuad * kQuad * slabs.out) {
        const int offset = smem_items[item];
        Vec<float, kQuad> w[kQuad];
#pragma unroll
        for (int ci = 0; ci < kQuad; ++ci) w[ci] = load<float, kQuad>(w_item + ci * kQuad * slabs.out);
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
          const Vec<float, kQuad> v = load<float, kQuad>(reinterpret_cast<const float*>(from[i] + offset));
#pragma unroll
          for (int j = 0; j < kQuad; ++j) {  // a sum of an item's own: one chain of all products would round each of them to the whole sum
            float of_item = v.at[0] * w[0].at[j];
#pragma unroll
            for (int ci = 1; ci < kQuad; ++ci) of_item += v.at[ci] * w[ci].at[j];
            sum[i][j] += of_item;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const GroupedOutput output(a, tile, smem_pixels[at + i * share.step]);
        if (!output.there) continue;
        const long long to = output.offset + channel;
        Vec<float, kQuad> more{}, values;
        if (Config::kResidual) more = load<float, kQuad>(residual + to);
        bool strange = false;
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          strange |= sum[i][j] != sum[i][j];
          values.at[j] = Config::Activation::forward(sum[i][j] + more.at[j], a.p, a.q);
        }
        store(y + to, values);
        if (strange) repair_output<Config, kQuad>(a, tile.image, output, channel);
      }
    }
    __syncthreads();  // nobody needs the tile any more
  }
}
