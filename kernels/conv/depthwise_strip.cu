// Depthwise convolution by strips: y[n, k, p] = f(sum over r of x[n, k / m, p * stride + r - before] * w[k, r] + bias[k] + residual). The input
// gradient of a stride of 1 is the same with the weights turned round, summed over the m channels of x that belong to one of y.
//
// Layout:  channels innermost in memory, w (K, taps). A block walks down a range of columns of one image or of several small ones, or, where the
//          window is kDepth > 1 deep, of the planes of an image that kPlanes planes of outputs read, kLines rows a step, which come to
//          shared memory some steps ahead. A thread owns kStrip neighbouring outputs of kOut channels, which it computes from kIn channels,
//          kLanes such vectors beside each other; its weights stay in registers. A row of inputs is used once, for all outputs that it meets: their sums are alive in
//          registers and move on from row to row.
// Needs:   pointers aligned to 16 bytes, channels in whole vectors; a square window of kSide, kStride along both axes, no dilation; less
//          than 2^31 blocks; images of less than 2^31 elements.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32.

#include "dnnarray/depthwise_strips.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  static constexpr bool kAdded = false;
  static constexpr bool kRelu = false;
  static constexpr int kDepth = 1;
  static constexpr int kPlanes = 1;
  static constexpr int kSide = 7;
  static constexpr int kStride = 1;
  static constexpr int kLines = 2;
  static constexpr int kReads = 1;
  static constexpr int kWrites = 1;
  static constexpr int kLanes = 32;
  static constexpr int kStrip = 7;
  static constexpr int kShare = 5;
  static constexpr int kStages = 4;
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 3;
};
#define DNNARRAY_ENTRY conv_depthwise_strip_default
#endif

using namespace dnnarray;
using T = Config::Element;
using Strips = DepthwiseStrips<Config>;

extern __shared__ uint4 smem_memory[];

// Rows of inputs that the block's own threads bring.
struct Rows : StepTurns<Config::kStages> {
  static constexpr int kPixel = Strips::kPixel, kPass = Config::kThreads / (kPixel / 16);
  int stage;
  StreamSource source;
  RowStream<T, Config::kLines, Config::kShare> stream;
  unsigned base;

  __device__ __forceinline__ Rows(const T* x, const StreamSource& source, const StreamTile& tile, const Divisor& by_pitch, int row)
      : stage(Config::kLines * tile.groups * tile.pitch * kPixel),
        source(source),
        stream(x, source, tile, row, kPass, [&](int pixel) { return Strips::split(pixel, by_pitch); }),
        base(smem_address(smem_memory)) {
    ring.full = base + Config::kStages * stage;
    ring.done = ring.full + Config::kStages * 8;
  }
  __device__ __forceinline__ void begin(int steps) {
    ring.begin();
    for (int s = 0; s < min(ring.kAhead, steps); ++s) bring(s);
  }
  __device__ __forceinline__ void weights_read() const {}
  __device__ __forceinline__ void ahead(int step, int steps) {
    wait_for_place(step);
    if (step + ring.kAhead < steps) bring(coming);
    turn();
  }

 private:
  __device__ __forceinline__ void bring(int place) {
    stream.bring(base + place * stage, source, kPass * kPixel);
    ring.brought(place);
  }
};

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks) DNNARRAY_ENTRY(const T* __restrict__ gmem_x,
    const T* __restrict__ gmem_w, const T* __restrict__ gmem_bias, const T* __restrict__ gmem_residual, T* __restrict__ gmem_y, long long batch,
    long long channels, long long flip, long long chunks, long long by_chunks, long long parts, long long by_parts, long long tiles, long long by_tiles,
    long long depth_groups, long long by_depth_groups, long long across, long long by_across, long long pitch, long long by_pitch, long long rows,
    long long x_n, long long x_h, long long x_w, long long y_n, long long y_h, long long y_w, long long height, long long width, long long out_height,
    long long out_width, long long before_h, long long before_w, long long x_d, long long y_d, long long depths, long long depth_steps) {
  const auto i = [](long long value) { return static_cast<int>(value); };  // all of them fit
  const Strips::Arguments a{gmem_w, gmem_bias, gmem_residual, gmem_y, i(batch), i(channels), flip != 0, Divisor(chunks, by_chunks),
                            Divisor(parts, by_parts), Divisor(tiles, by_tiles), Divisor(depth_groups, by_depth_groups), Divisor(across, by_across),
                            Divisor(pitch, by_pitch), i(rows), x_n, x_h, x_w, y_n, y_h, y_w, i(height), i(width), i(out_height), i(out_width),
                            i(before_h), i(before_w), x_d, y_d, depths, depth_steps};
  const Strips::Block block(a);
  const Strips::Range range = block.range(a);
  StreamTile tile{block.image, a.batch, block.seen(), block.left(a), i(pitch), block.first, Strips::kPixel / 16, Strips::kPixel};
  StreamSource source{x_n, x_h, x_w, a.height, a.width, a.channels};
  const T* x = gmem_x;
  if constexpr (Config::kDepth > 1) {  // planes take the place of images
    x += block.image * x_n;
    tile.image = block.top_plane(a);
    tile.images = low(depths);
    source.n = x_d;
  }
  Rows of_x(x, source, tile, a.pitch, range.row);
  Strips::walk(a, block, range, of_x, smem_memory);
}
