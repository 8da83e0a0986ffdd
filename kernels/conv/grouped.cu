// Convolution of groups of few channels on the tensor cores: y[n, k, p] = f(sum over taps and c of the group of x[n, c,
// p * stride + tap * dilation - before] * w[k, c, tap] + bias[k] + residual[n, k, p]).
//
// Layout:  x, y and residual with dense channels, the rest by steps; w by steps. A slab (grouped.cuh) is one product:
//          16 pixels x (two items of eight channels) times (two items) x eight outputs, the weights between different
//          groups being zero. A block of kThreads has `across` slabs and stays for many tiles, whose boxes come one
//          ahead; a warp has one slab and kM x 16 pixels of the tile at a time, kN x 8 outputs. Its weights stand in
//          shared memory in the order of the registers. Results leave by way of shared memory in whole lines.
// Needs:   sm_80; half types; channels of all groups in whole chunks, pointers aligned to 16 bytes; images of less than
//          2^31 elements.
// Bound:   memory (x and y once) for small groups, shared memory (512 bytes for each product's pixels) in between, the
//          tensor cores for wide ones. Sums in float32. What is NaN, since an infinity met one of the zeros, is
//          computed again by the definition.

#include "dnnarray/core/activation.cuh"
#include "dnnarray/ptx/ldmatrix.cuh"
#include "conv/grouped.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = dnnarray::bfloat16_t;
  using Result = dnnarray::bfloat16_t;
  using Activation = dnnarray::Identity;
  static constexpr bool kBias = false;
  static constexpr bool kResidual = false;
  static constexpr int kM = 4;
  static constexpr int kN = 1;
  static constexpr int kPairs = 0;
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
  int parts;
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
#define DNNARRAY_ENTRY conv_grouped_default
#endif

using namespace dnnarray;
using T = Config::Element;
using R = Config::Result;
constexpr int kM = Config::kM, kN = Config::kN, kThreads = Config::kThreads, kWarps = kThreads / 32;
constexpr int kPairs =
    Config::kPairs;  // of items, whose weights stay in registers; 0: any number, whose weights stay in shared memory
constexpr int kChunk = 8, kPiece = 16 / sizeof(R), kPieces = kChunk / kPiece;  // of a chunk of results

extern __shared__ uint4 smem_memory[];

using Convolution = GroupedConvolution<T, R>;

// B of each pair of items, in the order of registers: word `half` of lane l is item 2 pair + half, channels 2 (l % 4)
// and the next, output l / 4.
__device__ __forceinline__ void pack_weights(unsigned* smem, const Convolution& a, int pairs) {
  const GroupedSlabs& s = a.slabs;
  const int lane = threadIdx.x / 2 % 32, half = threadIdx.x % 2, words = s.across * pairs * kN;
#pragma unroll 4
  for (int i = threadIdx.x / 64; i < words; i += kThreads / 64) {
    const int by_n = i / kN, chunk_out = s.part * kN + i - by_n * kN, slab = by_n / pairs,
              item = 2 * (by_n - slab * pairs) + half;
    const int tap = item / s.in, in = (item - tap * s.in) * kChunk + lane % 4 * 2, out = chunk_out * kChunk + lane / 4;
    const T* from = chunk_out < s.out ? a.weights(slab, tap, out) : nullptr;
    const unsigned low = a.of_input(from, in, out).bits, high = a.of_input(from, in + 1, out).bits;
    smem[i * 64 + threadIdx.x % 64] = low | high << 16;
  }
}

// The bias of the block's outputs, each slab's kN chunks; zeros behind the last channel.
__device__ __forceinline__ void list_bias(float* smem, const Convolution& a) {
  const GroupedSlabs& s = a.slabs;
  for (int i = threadIdx.x; i < s.across * kN * kChunk; i += kThreads) {
    const int slab = i / (kN * kChunk), of_slab = s.part * kN * kChunk + i - slab * kN * kChunk;
    const int channel = (s.first + slab) * s.out * kChunk + of_slab;
    smem[i] = of_slab < s.out * kChunk && channel < s.groups * s.k ? widen(a.bias[channel]) : 0.0f;
  }
}

// A warp's weights and where the inputs of its items stand.
struct Items {
  const int* smem_items;
  const uint2* smem_w;
  int pairs;
  int offset[kPairs + 1];
  uint2 w[kPairs + 1][kN];

  __device__ __forceinline__ Items(const int* items, const uint2* weights, int count)
      : smem_items(items + threadIdx.x % 32 / 16), smem_w(weights + threadIdx.x % 32), pairs(count) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      offset[pair] = smem_items[2 * pair];
#pragma unroll
      for (int n = 0; n < kN; ++n) w[pair][n] = smem_w[(pair * kN + n) * 32];
    }
  }
};

// One pair of items for kM x 16 pixels whose first inputs are at `from`.
__device__ __forceinline__ void multiply_pair(float (&sum)[kM][kN][4], const unsigned (&from)[kM], int offset,
                                              const uint2 (&w)[kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    unsigned x[4];
    ldmatrix_x4(from[m] + offset, x);
#pragma unroll
    for (int n = 0; n < kN; ++n) Mma<T>::add(sum[m][n], x, w[n].x, w[n].y);
  }
}

__device__ __forceinline__ void multiply(float (&sum)[kM][kN][4], const unsigned (&from)[kM], const Items& items) {
  if constexpr (kPairs > 0) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) multiply_pair(sum, from, items.offset[pair], items.w[pair]);
  } else {
    const uint2* smem_w = items.smem_w;
#pragma unroll 2
    for (int pair = 0; pair < items.pairs; ++pair, smem_w += kN * 32) {
      uint2 w[kN];
#pragma unroll
      for (int n = 0; n < kN; ++n) w[n] = smem_w[n * 32];
      multiply_pair(sum, from, items.smem_items[2 * pair], w);
    }
  }
}

__device__ __forceinline__ void begin(float (&sum)[kM][kN][4], const float* smem_bias) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float2 bias = Config::kBias ? *reinterpret_cast<const float2*>(smem_bias + n * kChunk) : float2{0, 0};
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      sum[m][n][0] = sum[m][n][2] = bias.x;
      sum[m][n][1] = sum[m][n][3] = bias.y;
    }
  }
}

// What a thread stores: 16 bytes of each `share.step`-th pixel.
struct Drain {
  PieceShare share;
  int channel;
  bool there;

  __device__ __forceinline__ Drain(const GroupedSlabs& s) : share(kThreads, s.across * kN * kPieces) {
    const int chunk = share.vector / kPieces, slab = chunk / kN, of_slab = s.part * kN + chunk - slab * kN;
    channel = ((s.first + slab) * s.out + of_slab) * kChunk + share.vector % kPieces * kPiece;
    there = of_slab < s.out && channel < s.groups * s.k;
  }
};

__device__ __forceinline__ bool strange(const Vec<R, kPiece>& values) {
  float value[kPiece];
  widen_all(value, values);
  bool found = false;
#pragma unroll
  for (int j = 0; j < kPiece; ++j) found |= value[j] != value[j];
  return found;
}

// Pixels m to m + count of a tile from shared memory to y; whether one of them was NaN.
__device__ __forceinline__ bool store_pixels(const Convolution& a, const Drain& drain, const TilePlace& tile,
                                             const TilePixel* smem_pixels, const unsigned char* smem, int pitch, int m,
                                             int count) {
  bool found = false;
  for (int i = drain.share.first; i < count; i += drain.share.step) {
    const GroupedOutput output(a, tile, smem_pixels[m + i]);
    if (!drain.there || !output.there) continue;
    Vec<R, kPiece> values;
    const uint4 v = *reinterpret_cast<const uint4*>(smem + i * pitch + drain.share.vector * 16);
    memcpy(&values, &v, sizeof v);
    store(a.y + output.offset + drain.channel, values);
    found |= strange(values);
  }
  return found;
}

// Computes again what is NaN of the outputs that this thread stored.
__device__ __forceinline__ void repair(const Convolution& a, const Drain& drain, const TilePlace& tile,
                                       const TilePixel* smem_pixels, int count, int chunk) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (i % chunk % drain.share.step != drain.share.first) continue;
    const GroupedOutput output(a, tile, smem_pixels[i]);
    if (!drain.there || !output.there) continue;
    repair_output<Config, kPiece>(a, tile.image, output, drain.channel);
  }
}

// The sums of a warp with all that comes behind them, to shared memory.
struct Finish {
  const Convolution& a;
  const TilePlace& tile;
  const TilePixel* smem_pixels;  // of the warp's first pixel
  int channel;                   // of this lane, in the first chunk
  bool there;

  __device__ __forceinline__ void put(unsigned char* smem, int pitch, const float (&sum)[kM][kN][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = m * 16 + half * 8 + lane / 4;
        const T* more = nullptr;
        if constexpr (Config::kResidual) more = residual(smem_pixels[i]);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          float low = sum[m][n][2 * half], high = sum[m][n][2 * half + 1];
          if (Config::kResidual && more && channel + n * kChunk < a.slabs.groups * a.slabs.k) {
            low += widen(more[n * kChunk]);
            high += widen(more[n * kChunk + 1]);
          }
          const float pair[2] = {Config::Activation::forward(low, a.p, a.q),
                                 Config::Activation::forward(high, a.p, a.q)};
          store(reinterpret_cast<R*>(smem + i * pitch) + n * kChunk + lane % 4 * 2, narrow_all<R, 2>(pair));
        }
      }
    }
  }
  __device__ __forceinline__ const T* residual(const TilePixel& pixel) const {
    const GroupedOutput output(a, tile, pixel);
    return there && output.there ? a.residual + output.offset + channel : nullptr;
  }
};

// Block b has the slabs of range b % ranges, part b / ranges % parts of their outputs, and each so-many-th tile of
// `depths` x `rows` x `columns` outputs.
extern "C" __global__ void __launch_bounds__(kThreads, 512 / kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, R* __restrict__ y, const __grid_constant__ Arguments a) {
  if constexpr (Config::kBias)
    __builtin_assume(bias);  // else the loop of repairs is compiled twice, with and without a bias
  const int by_range = blockIdx.x / a.ranges, range = blockIdx.x - by_range * a.ranges, by_part = by_range / a.parts;
  const GroupedSlabs slabs = slabs_of(a, kChunk, range, by_range - by_part * a.parts);
  const Convolution conv{x,
                         weight,
                         Config::kBias ? bias : nullptr,
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
  const int items = conv.axes.d.window * conv.axes.h.window * conv.axes.w.window * slabs.in,
            pairs = kPairs > 0 ? kPairs : (items + 1) / 2;
  const int chunk = kWarps / slabs.across * kM * 16,
            pixels = (tiles.depths * tiles.rows * tiles.columns + chunk - 1) / chunk * chunk;
  const int pitch = (slabs.across * kN * kPieces | 1) * 16;

  unsigned char* smem = reinterpret_cast<unsigned char*>(smem_memory);
  unsigned char* smem_y = smem + 2 * box.bytes();
  uint2* smem_w = reinterpret_cast<uint2*>(smem_y + 2 * chunk * pitch);
  TilePixel* smem_pixels = reinterpret_cast<TilePixel*>(smem_w + slabs.across * pairs * kN * 32);
  int* smem_items = reinterpret_cast<int*>(smem_pixels + pixels);
  float* smem_bias = reinterpret_cast<float*>(smem_items + 2 * pairs);

  const int first_channel = slabs.first * slabs.in * kChunk;
  const PixelStrides& of_x = a.x_strides;
  const BoxSource source{static_cast<int>(of_x.d),
                         static_cast<int>(of_x.h),
                         static_cast<int>(of_x.w),
                         conv.axes.d.space,
                         conv.axes.h.space,
                         conv.axes.w.space,
                         slabs.groups * slabs.c - first_channel};
  const GroupedFixed<T>& fixed = keep(GroupedFixed<T>{tiles, conv.axes, {x + first_channel, of_x.n, source, box}});
  const int count = a.batch * tiles.deep * tiles.down * tiles.across, step = gridDim.x / (a.ranges * a.parts);
  const auto bring = [&](int index, int stage) {
    const TilePlace tile(index, fixed.tiles);
    fixed.x.bring<kThreads>(shared_address(smem) + stage * fixed.x.box.bytes(), tile.image, tile.inputs(fixed.axes));
  };
  if (by_part < count) bring(by_part, 0);
  cp_async_commit_group();
  list_pixels<kThreads>(smem_pixels, pixels, tiles, conv.axes, box);
  list_items<kThreads>(smem_items, 2 * pairs, items, slabs.in, conv.axes, box);
  if (Config::kBias) list_bias(smem_bias, conv);
  pack_weights(reinterpret_cast<unsigned*>(smem_w), conv, pairs);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = warp % slabs.across, beside = warp / slabs.across;
  const int channel = ((slabs.first + own) * slabs.out + slabs.part * kN) * kChunk + lane % 4 * 2;
  const Drain drain(slabs);
  __syncthreads();
  const Items of_warp(smem_items, smem_w + own * pairs * kN * 32, pairs);
  int stage = 0, buffer = 0;
  for (int index = by_part; index < count; index += step, stage ^= 1) {
    if (index + step < count) bring(index + step, stage ^ 1);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    __syncthreads();
    const TilePlace tile(index, tiles);
    const unsigned smem_x = shared_address(smem) + stage * box.bytes() + own * slabs.in * 16;
    bool found = false;
    for (int at = 0; at < pixels; at += chunk, buffer ^= 1) {
      const TilePixel* smem_own = smem_pixels + at + beside * kM * 16;
      unsigned from[kM];
      float sum[kM][kN][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) from[m] = smem_x + smem_own[m * 16 + lane % 16].offset;
      begin(sum, smem_bias + own * kN * kChunk + lane % 4 * 2);
      multiply(sum, from, of_warp);
      unsigned char* smem_out = smem_y + buffer * chunk * pitch;
      const Finish finish{conv, tile, smem_own, channel, channel < slabs.groups * slabs.k};
      finish.put(smem_out + beside * kM * 16 * pitch + own * kN * kChunk * static_cast<int>(sizeof(R)), pitch, sum);
      __syncthreads();
      found |= store_pixels(conv, drain, tile, smem_pixels, smem_out, pitch, at, chunk);
    }
    if (found) repair(conv, drain, tile, smem_pixels, pixels, chunk);
    __syncthreads();  // nobody needs the tile any more
  }
}
