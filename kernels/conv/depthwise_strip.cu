// Depthwise convolution by strips: y[n, k, p] = f(sum over r of x[n, k / m, p * stride + r - before] * w[k, r] +
// bias[k] + residual). The input gradient of a stride of 1 is the same with the weights turned round, summed over the m
// channels of x that belong to one of y.
//
// Layout:  channels innermost in memory, w (K, taps). A block walks down a range of columns of one image or of several
//          small ones, or, where the window is kDepth > 1 deep, of the planes of an image that kPlanes planes of
//          outputs read, kLines rows a step, which come to shared memory some steps ahead. A thread owns kStrip
//          neighbouring outputs of kOut channels, which it computes from kIn channels, kLanes such vectors beside each
//          other; its weights stay in registers. A row of inputs is used once, for all outputs that it meets: their
//          sums are alive in registers and move on from row to row.
// Needs:   pointers aligned to 16 bytes, channels in whole vectors; a square window of kSide, kStride along both axes,
//          no dilation; less than 2^31 blocks; images of less than 2^31 elements.
// Bound:   memory for small windows: x and y once; float32 arithmetic for large ones. Sums in float32.

#include "conv/depthwise_strips.cuh"

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
struct Arguments {
  int batch;
  int channels;
  int flip;
  int rows;
  int chunks;
  int parts;
  int tiles;
  int depth_groups;
  int across;
  int pitch;
  long long by_chunks;
  long long by_parts;
  long long by_tiles;
  long long by_depth_groups;
  long long by_across;
  long long by_pitch;
  dnnarray::PixelStrides x_strides;
  dnnarray::PixelStrides y_strides;
  dnnarray::ConvAxes axes;
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

  __device__ __forceinline__ Rows(const T* x, const StreamSource& source, const StreamTile& tile,
                                  const Divisor& by_pitch, int row)
      : stage(Config::kLines * tile.groups * tile.pitch * kPixel),
        source(source),
        stream(x, source, tile, row, kPass, [&](int pixel) { return Strips::split(pixel, by_pitch); }),
        base(shared_address(smem_memory)) {
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

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kBlocks)
    DNNARRAY_ENTRY(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                   const T* __restrict__ residual, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const Strips::Problem problem = Strips::problem_of(weight, bias, residual, y, a);
  const Strips::Block block(problem);
  const Strips::Range range = block.range(problem);
  StreamTile tile{block.image, a.batch,     block.seen(),        block.left(problem),
                  a.pitch,     block.first, Strips::kPixel / 16, Strips::kPixel};
  StreamSource source{a.x_strides.n, a.x_strides.h, a.x_strides.w, a.axes.h.space, a.axes.w.space, a.channels};
  const T* from = x;
  if constexpr (Config::kDepth > 1) {  // planes take the place of images
    from += block.image * a.x_strides.n;
    tile.image = block.top_plane(problem);
    tile.images = a.axes.d.space;
    source.n = a.x_strides.d;
  }
  Rows of_x(from, source, tile, problem.pitch, range.row);
  Strips::walk(problem, block, range, of_x, smem_memory);
}
