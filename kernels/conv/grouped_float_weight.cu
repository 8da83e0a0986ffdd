// The weight gradient of a convolution of groups of few channels on the CUDA cores: dw[k, c, tap] = the sum over n and
// p of dy[n, k, p] * x[n, c, p * stride + tap * dilation - before]. First stage: partial sums (part, K, taps, C);
// another launch adds them up.
//
// Layout:  x and dy with dense channels, the rest by steps. A slab (grouped.cuh) is made of quads of channels. A block
//          of kThreads has `across` slabs and stays for many tiles, whose inputs and gradients come to shared memory
//          one tile ahead. A thread has kItems items (a tap and a quad of inputs) and one quad of outputs of one slab,
//          16 sums for each item, of each `copies`-th pixel of a tile; behind the last tile the block adds up its
//          copies. Threads beside each other have neighbouring slabs. What is between different groups is not stored.
// Needs:   float32; channels of all groups in whole quads, pointers aligned to 16 bytes; images of less than 2^31
//          elements.
// Bound:   memory (x and dy once) for small groups, else float32 arithmetic and shared memory. Sums in a fixed order.

#include "conv/grouped_weight.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr int kItems = 9;
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
  int tasks;
  int parts;
  int item_parts;
  int depths;
  int rows;
  int columns;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
};
#define DNNARRAY_ENTRY conv_grouped_float_weight_default
#endif

using namespace dnnarray;
constexpr int kItems = Config::kItems, kThreads = Config::kThreads, kQuad = 4, kSums = kItems * kQuad * kQuad;

extern __shared__ uint4 smem_memory[];

using Sums = float[kItems][kQuad][kQuad];  // (item, output, input)

// A block's share of the sums: `across` slabs from `first` on, and of each `tasks` tasks, task i being part i %
// item_parts of the items for quad i / item_parts of the outputs.
struct Share {
  int first, across, tasks, start, item_parts;

  __device__ __forceinline__ int units() const { return across * tasks; }
  __device__ __forceinline__ int slab(int unit) const { return unit % across; }
  __device__ __forceinline__ int task(int unit) const { return start + unit / across; }
  __device__ __forceinline__ int quad(int unit) const { return task(unit) / item_parts; }
  __device__ __forceinline__ int item(int unit) const { return task(unit) % item_parts * kItems; }
};

// One pixel's terms.
__device__ __forceinline__ void multiply(Sums& sum, const unsigned char* x, const float* dy,
                                         const int (&offset)[kItems]) {
  const Vec<float, kQuad> grad = load<float, kQuad>(dy);
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const Vec<float, kQuad> v = load<float, kQuad>(reinterpret_cast<const float*>(x + offset[item]));
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
#pragma unroll
      for (int c = 0; c < kQuad; ++c) sum[item][k][c] += v.at[c] * grad.at[k];
    }
  }
}

// A unit's sum to (K, taps, C), if it is between channels of the same group.
__device__ __forceinline__ void put(float* partial, float value, const Share& share, int unit, int index,
                                    const Slabs& s, int taps) {
  const int item = share.item(unit) + index / (kQuad * kQuad), tap = item / s.in;
  const int in = (item - tap * s.in) * kQuad + index % kQuad, group = in / s.c;
  const int k = share.quad(unit) * kQuad + index / kQuad % kQuad - group * s.k;
  const long long own = static_cast<long long>(share.first + share.slab(unit)) * s.together + group;
  if (tap >= taps || k < 0 || k >= s.k || own >= s.groups) return;
  partial[((own * s.k + k) * taps + tap) * s.c + in - group * s.c] = value;
}

// The copies of each sum added up in their order, by way of shared memory, which nobody reads any more.
__device__ __forceinline__ void add_copies(float* partial, float* smem, const Sums& sum, int copies, const Share& share,
                                           const Slabs& s, int taps) {
  constexpr int kPitch = kSums + 1;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    smem[threadIdx.x * kPitch + i] = sum[i / (kQuad * kQuad)][i / kQuad % kQuad][i % kQuad];
  __syncthreads();
  const int units = share.units();
  for (int i = threadIdx.x; i < units * kSums; i += kThreads) {
    const int unit = i / kSums, index = i - unit * kSums;
    float total = 0;
    for (int copy = 0; copy < copies; ++copy) total += smem[(copy * units + unit) * kPitch + index];
    put(partial, total, share, unit, index, s, taps);
  }
}

// Block b has the slabs of range b % ranges, part b / ranges % parts of their tasks, and each so-many-th tile of
// `depths` x `rows` x `columns` outputs.
extern "C" __global__ void __launch_bounds__(kThreads, kItems > 5 ? 1 : 2)
    DNNARRAY_ENTRY(const float* __restrict__ dy, const float* __restrict__ x, float* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const BlockShare block(a.ranges, a.parts);
  const int first = block.range * a.across;
  const Slabs slabs = Slabs::of(a.groups, a.c, a.k, a.together, kQuad);
  const Share share{first, a.across, a.tasks, block.part * a.tasks, a.item_parts};
  const ConvAxes& axes = a.axes;
  const Tiling tiles(a.depths, a.rows, a.columns, axes);
  const WeightTiles<float> given = WeightTiles<float>::of(dy, x, slabs, first, share.across, kQuad, tiles, axes,
                                                          with_channels(a.y_strides), with_channels(a.x_strides));
  const Box &box = given.x.box, &box_y = given.dy.box;
  const int taps = axes.d.window * axes.h.window * axes.w.window, items = taps * slabs.in,
            listed = share.item_parts * kItems;
  const int pixels = box_y.pixels(), stage_bytes = box.bytes() + box_y.bytes();

  unsigned char* smem = reinterpret_cast<unsigned char*>(smem_memory);
  TilePixel* smem_pixels = reinterpret_cast<TilePixel*>(smem + 2 * stage_bytes);
  int* smem_items = reinterpret_cast<int*>(smem_pixels + pixels);

  const int count = a.batch * tiles.deep * tiles.down * tiles.across;
  const WeightTiles<float>& fixed = keep(given);
  const auto bring = [&](int index, int stage) {
    fixed.bring<kThreads>(shared_address(smem) + stage * stage_bytes, index);
  };
  if (block.tile < count) bring(block.tile, 0);
  cp_async_commit_group();
  list_pixels<kThreads>(smem_pixels, pixels, tiles, axes, box);
  list_items<kThreads>(smem_items, listed, items, slabs.in, axes, box);
  __syncthreads();

  const int units = share.units(), copies = kThreads / units, copy = threadIdx.x / units,
            unit = threadIdx.x - copy * units;
  const int slab = share.slab(unit), quad = share.quad(unit);
  const bool busy = copy < copies && quad < slabs.out;
  int offset[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) offset[i] = busy ? smem_items[share.item(unit) + i] : 0;
  Sums sum = {};
  int stage = 0;
  for (int index = block.tile; index < count; index += block.tiles, stage ^= 1) {
    if (index + block.tiles < count) bring(index + block.tiles, stage ^ 1);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    __syncthreads();
    const TilePlace tile(index, fixed.tiles);
    const int deep = fixed.axes.d.out - tile.d, high = fixed.axes.h.out - tile.p,
              wide = fixed.axes.w.out - tile.q;  // of the image from here on
    const unsigned char* smem_x = smem + stage * stage_bytes + slab * slabs.in * 16;
    const unsigned char* smem_y = smem + stage * stage_bytes + fixed.x.box.bytes() + (slab * slabs.out + quad) * 16;
#pragma unroll 1
    for (int m = copy; m < pixels && busy; m += copies) {
      const TilePixel pixel = smem_pixels[m];
      if (pixel.depth() >= deep || pixel.row() >= high || pixel.column() >= wide)
        continue;  // inputs there may be infinite
      multiply(sum, smem_x + pixel.offset, reinterpret_cast<const float*>(smem_y + m * fixed.dy.box.pitch), offset);
    }
    __syncthreads();  // nobody needs the tile any more
  }
  cp_async_wait_group<0>();
  const long long size = static_cast<long long>(slabs.groups) * slabs.k * taps * slabs.c;
  add_copies(partial + block.tile * size, reinterpret_cast<float*>(smem), sum, copies, share, slabs, taps);
}
