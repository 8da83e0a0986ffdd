// Convolution of groups of few channels on the CUDA cores: y[n, k, p] = f(sum over taps and c of the group of x[n, c, p
// * stride + tap * dilation - before] * w[k, c, tap] + bias[k] + residual[n, k, p]).
//
// Layout:  x, y and residual with dense channels, the rest by steps; w by steps. A slab (grouped.cuh) is made of quads
//          of channels; between different groups its weights are zero. A block of kThreads has `across` slabs and stays
//          for many tiles, whose boxes come one ahead. A thread has one quad of outputs and kPixels pixels; threads
//          beside each other have neighbouring quads, then neighbouring pixels.
// Needs:   float32; channels of all groups in whole quads, pointers aligned to 16 bytes; images of less than 2^31
//          elements.
// Bound:   memory (x and y once) for small groups, else float32 arithmetic. What is NaN, since an infinity met one of
//          the zeros, is computed again by the definition.

#include "dnnarray/core/activation.cuh"
#include "conv/grouped.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Activation = dnnarray::Identity;
  static constexpr bool kResidual = false;
  static constexpr int kPixels = 8;
  static constexpr int kThreads = 256;
};
struct Arguments {
  int batch;
  int groups;
  int c;
  int k;
  int together;
  int across;
  int ranges;
  int depths;
  int rows;
  int columns;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::WeightStrides w_strides;
  dnnarray::ConvAxes axes;
  double p;
  double q;
};
#define DNNARRAY_ENTRY conv_grouped_float_default
#endif

using namespace dnnarray;
constexpr int kPixels = Config::kPixels, kThreads = Config::kThreads, kQuad = 4;
using Convolution = GroupedConvolution<float, float>;

extern __shared__ uint4 smem_memory[];

// (slab, item, input of the quad, output): four outputs of a quad side by side.
__device__ __forceinline__ void pack_weights(float* smem, const Convolution& a, int items) {
  const GroupedSlabs& s = a.slabs;
  const int outs = s.out * kQuad, words = s.across * items * kQuad * outs;
#pragma unroll 4
  for (int i = threadIdx.x; i < words; i += kThreads) {
    const int by_out = i / outs, by_slab = by_out / kQuad / items, item = by_out / kQuad - by_slab * items,
              tap = item / s.in;
    const int out = i - by_out * outs;
    smem[i] = a.of_input(a.weights(by_slab, tap, out), (item - tap * s.in) * kQuad + by_out % kQuad, out);
  }
}

// Block b has the slabs of range b % ranges and each so-many-th tile of `depths` x `rows` x `columns` outputs.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    DNNARRAY_ENTRY(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                   const float* __restrict__ residual, float* __restrict__ y, const __grid_constant__ Arguments a) {
  const int by_range = blockIdx.x / a.ranges, range = blockIdx.x - by_range * a.ranges;
  const GroupedSlabs slabs = slabs_of(a, kQuad, range, 0);
  const Convolution conv{x,
                         weight,
                         bias,
                         residual,
                         y,
                         a.axes,
                         slabs,
                         a.w_strides,
                         with_channels(a.x_strides),
                         with_channels(a.y_strides),
                         static_cast<float>(a.p),
                         static_cast<float>(a.q)};
  const Tiling tiles(a.depths, a.rows, a.columns, conv.axes);
  const Box box = tiles.box(conv.axes, slabs.across * slabs.in);
  const int items = conv.axes.d.window * conv.axes.h.window * conv.axes.w.window * slabs.in;
  const PieceShare share(kThreads, slabs.across * slabs.out);  // quads of outputs
  const int chunk = share.step * kPixels,
            pixels = (tiles.depths * tiles.rows * tiles.columns + chunk - 1) / chunk * chunk;

  unsigned char* smem = reinterpret_cast<unsigned char*>(smem_memory);
  float* smem_w = reinterpret_cast<float*>(smem + 2 * box.bytes());
  TilePixel* smem_pixels = reinterpret_cast<TilePixel*>(smem_w + slabs.across * items * slabs.out * kQuad * kQuad);
  int* smem_items = reinterpret_cast<int*>(smem_pixels + pixels);

  const int first_channel = slabs.first * slabs.in * kQuad;
  const PixelStrides& of_x = a.x_strides;
  const BoxSource source{static_cast<int>(of_x.d),
                         static_cast<int>(of_x.h),
                         static_cast<int>(of_x.w),
                         conv.axes.d.space,
                         conv.axes.h.space,
                         conv.axes.w.space,
                         slabs.groups * slabs.c - first_channel};
  const GroupedFixed<float>& fixed =
      keep(GroupedFixed<float>{tiles, conv.axes, {x + first_channel, of_x.n, source, box}});
  const int count = a.batch * tiles.deep * tiles.down * tiles.across, step = gridDim.x / a.ranges;
  const auto bring = [&](int index, int stage) {
    const TilePlace tile(index, fixed.tiles);
    fixed.x.bring<kThreads>(shared_address(smem) + stage * fixed.x.box.bytes(), tile.image, tile.inputs(fixed.axes));
  };
  if (by_range < count) bring(by_range, 0);
  cp_async_commit_group();
  list_pixels<kThreads>(smem_pixels, pixels, tiles, conv.axes, box);
  list_items<kThreads>(smem_items, items, items, slabs.in, conv.axes, box);
  pack_weights(smem_w, conv, items);

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
    cp_async_commit_group();
    cp_async_wait_group<1>();
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
          for (int j = 0; j < kQuad;
               ++j) {  // a sum of an item's own: one chain of all products would round each of them to the whole sum
            float of_item = v.at[0] * w[0].at[j];
#pragma unroll
            for (int ci = 1; ci < kQuad; ++ci) of_item += v.at[ci] * w[ci].at[j];
            sum[i][j] += of_item;
          }
        }
      }
      unsigned strange = 0;  // a bit for each pixel that has a NaN
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const GroupedOutput output(conv, tile, smem_pixels[at + i * share.step]);
        if (!output.there) continue;
        const long long to = output.offset + channel;
        Vec<float, kQuad> more{}, values;
        if (Config::kResidual) more = load<float, kQuad>(residual + to);
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          if (sum[i][j] != sum[i][j]) strange |= 1u << i;
          values.at[j] = Config::Activation::forward(sum[i][j] + more.at[j], conv.p, conv.q);
        }
        store(y + to, values);
      }
#pragma unroll 1
      for (; strange; strange &= strange - 1) {
        const GroupedOutput output(conv, tile, smem_pixels[at + (__ffs(strange) - 1) * share.step]);
        repair_output<Config, kQuad>(conv, tile.image, output, channel);
      }
    }
    __syncthreads();  // nobody needs the tile any more
  }
}
