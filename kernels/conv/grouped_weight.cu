// The weight gradient of a convolution of groups of few channels on the tensor cores: dw[k, c, tap] = the sum over n
// and p of dy[n, k, p] * x[n, c, p * stride + tap * dilation - before]. First stage: partial sums (part, K, taps, C) in
// float; another launch adds them up.
//
// Layout:  x and dy with dense channels, the rest by steps. A block has `across` slabs (grouped.cuh) and stays for many
//          tiles, whose inputs and gradients come to shared memory one tile ahead. A product is (two items x eight
//          channels) x 16 pixels times 16 pixels x eight outputs: both operands are transposed on their way to the
//          registers. A warp has kPairs pairs of items and kN x 8 outputs of one slab, and each `copies`-th 16 or 32
//          pixels of a tile. What is between different groups is not stored.
// Needs:   sm_80; half types; channels of all groups in whole chunks, pointers aligned to 16 bytes; images of less than
//          2^31 elements.
// Bound:   memory (x and dy once) for small groups, else shared memory and the tensor cores. Sums in float32, in a
//          fixed order.

#include "conv/grouped_weight.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"
#include "dnnarray/ptx/opaque.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  static constexpr int kPairs = 5;
  static constexpr int kN = 1;
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
#define DNNARRAY_ENTRY conv_grouped_weight_default
#endif

using namespace dnnarray;
using T = Config::Element;
constexpr int kPairs = Config::kPairs, kN = Config::kN, kThreads = Config::kThreads, kWarps = kThreads / 32, kChunk = 8;
constexpr int kHalves = kN > 2 ? 1 : 2, kStep = 16 * kHalves;  // pixels that a warp takes at once

extern __shared__ uint4 smem_memory[];

// The gradients of a step's pixels, as B of each sixteen of them. `smem` is those of the first pixel.
__device__ __forceinline__ void load_gradients(unsigned (&dy)[kHalves][kN][2], unsigned smem, int pitch) {
  const int lane = threadIdx.x % 32;
  unsigned r[4];
  if constexpr (kHalves == 2) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      ldmatrix_x4_trans(smem + lane * pitch + n * 16, r);
#pragma unroll
      for (int i = 0; i < 4; ++i) dy[i / 2][n][i % 2] = r[i];
    }
  } else {
#pragma unroll
    for (int n = 0; n < kN; n += 2) {  // two chunks at once; of an odd last one, twice the same
      ldmatrix_x4_trans(smem + lane % 16 * pitch + min(n + lane / 16, kN - 1) * 16, r);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n + i / 2 < kN) dy[0][n + i / 2][i % 2] = r[i];
      }
    }
  }
}

// The sums of a step: `inputs` are where this lane's first inputs stand.
__device__ __forceinline__ void multiply(float (&sum)[kPairs][kN][4], const unsigned (&inputs)[kHalves],
                                         const unsigned (&dy)[kHalves][kN][2], const int* smem_items) {
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int offset = smem_items[2 * pair];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      unsigned x[4];
      ldmatrix_x4_trans(inputs[half] + offset, x);
#pragma unroll
      for (int n = 0; n < kN; ++n) Mma<T>::add(sum[pair][n], x, dy[half][n][0], dy[half][n][1]);
    }
  }
}

// What a warp's sums are of.
struct Task {
  int slab, item, chunk;  // first item, first chunk of outputs
};

// The sums between channels of the same group, to (K, taps, C).
__device__ __forceinline__ void put(float* partial, const float (&sum)[kPairs][kN][4], const Task& task, const Slabs& s,
                                    int taps) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int item = task.item + 2 * pair + half, tap = item / s.in, in = (item - tap * s.in) * kChunk + lane / 4;
      const int group = in / s.c, c = in - group * s.c;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int k = (task.chunk + n) * kChunk + lane % 4 * 2 + j - group * s.k;  // in the group
          const long long own = static_cast<long long>(task.slab) * s.together + group;
          if (tap >= taps || k < 0 || k >= s.k || own >= s.groups) continue;
          partial[((own * s.k + k) * taps + tap) * s.c + c] = sum[pair][n][2 * half + j];
        }
      }
      compiler_fence();  // not all places at once
    }
  }
}

// Block b has the slabs of range b % ranges, part b / ranges % parts of their tasks, and each so-many-th tile of
// `depths` x `rows` x `columns` outputs. A slab's tasks are `item_parts` parts of the items for each kN chunks of
// outputs, of which a block has `tasks`.
extern "C" __global__ void __launch_bounds__(kThreads, kN > 3 ? 1 : 2)
    DNNARRAY_ENTRY(const T* __restrict__ dy, const T* __restrict__ x, float* __restrict__ partial,
                   const __grid_constant__ Arguments a) {
  let_next_kernel_begin();
  const BlockShare block(a.ranges, a.parts);
  const int abreast = a.across, first = block.range * abreast;
  const Slabs slabs = Slabs::of(a.groups, a.c, a.k, a.together, kChunk);
  const ConvAxes& axes = a.axes;
  const Tiling tiles(a.depths, a.rows, a.columns, axes);
  const WeightTiles<T> given = WeightTiles<T>::of(dy, x, slabs, first, abreast, kChunk, tiles, axes,
                                                  with_channels(a.y_strides), with_channels(a.x_strides));
  const Box &box = given.x.box, &box_y = given.dy.box;
  const int taps = axes.d.window * axes.h.window * axes.w.window, items = taps * slabs.in;
  const int listed = a.item_parts * kPairs * 2, pixels = (box_y.pixels() + kStep - 1) / kStep * kStep;
  const int stage_bytes = box.bytes() + pixels * box_y.pitch;

  unsigned char* smem = reinterpret_cast<unsigned char*>(smem_memory);
  TilePixel* smem_pixels = reinterpret_cast<TilePixel*>(smem + 2 * stage_bytes);
  int* smem_items = reinterpret_cast<int*>(smem_pixels + pixels);

  const int count = a.batch * tiles.deep * tiles.down * tiles.across;
  const WeightTiles<T>& fixed = keep(given);
  const auto bring = [&](int index, int stage) {
    fixed.bring<kThreads>(shared_address(smem) + stage * stage_bytes, index);
  };
  if (block.tile < count) bring(block.tile, 0);
  cp_async_commit_group();
  list_pixels<kThreads>(smem_pixels, pixels, tiles, axes, box);
  list_items<kThreads>(smem_items, listed, items, slabs.in, axes, box);
  const int behind = (pixels - box_y.pixels()) * box_y.pitch / 4;  // words of gradients that there are not
  for (int i = threadIdx.x; i < 2 * behind; i += kThreads) {
    const int stage = i / behind;
    reinterpret_cast<unsigned*>(smem + (stage + 1) * stage_bytes)[i - (stage + 1) * behind] = 0;
  }
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, of_block = abreast * a.tasks, copies = kWarps / of_block;
  const int copy = warp / of_block, own = warp - copy * of_block, slab = own / a.tasks,
            index_of_task = block.part * a.tasks + own - slab * a.tasks;
  const int chunk_part = index_of_task / a.item_parts, item_part = index_of_task - chunk_part * a.item_parts;
  const Task task{first + slab, item_part * kPairs * 2, chunk_part * kN};
  const bool busy = copy < copies && task.chunk < slabs.out;
  const int* smem_own = smem_items + task.item + lane / 8 % 2;
  float sum[kPairs][kN][4] = {};
  int stage = 0;
  for (int index = block.tile; index < count; index += block.tiles, stage ^= 1) {
    if (index + block.tiles < count) bring(index + block.tiles, stage ^ 1);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    __syncthreads();
    const unsigned smem_x = shared_address(smem) + stage * stage_bytes, smem_y = smem_x + box.bytes();
    for (int m = copy * kStep; m < pixels && busy; m += copies * kStep) {
      unsigned inputs[kHalves], gradients[kHalves][kN][2];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        inputs[half] = smem_x + smem_pixels[m + half * 16 + lane / 16 * 8 + lane % 8].offset + slab * slabs.in * 16;
      }
      load_gradients(gradients, smem_y + m * box_y.pitch + (slab * slabs.out + task.chunk) * 16, box_y.pitch);
      multiply(sum, inputs, gradients, smem_own);
    }
    __syncthreads();  // nobody needs the tile any more
  }
  if (!busy) return;
  partial += static_cast<long long>(block.tile * copies + copy) * slabs.groups * slabs.k * taps * slabs.c;
  put(partial, sum, task, slabs, taps);
}
