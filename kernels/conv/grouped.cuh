// Convolution of groups of few channels: what its kernels share.
//
// Neighbouring groups are put together into a slab, whose channels are whole chunks of eight (16 bytes of a half type)
// on both sides; a block has some slabs of a tile of outputs, and brings the box of inputs that the tile reads to
// shared memory. A term of the sums of an output is an "item": a tap of the window and a chunk of input channels.
#pragma once

#include "conv/geometry.cuh"
#include "conv/keep.cuh"
#include "dnnarray/mma/warp.cuh"
#include "dnnarray/ptx/cp_async.cuh"

namespace dnnarray {

// An image in memory, its channels dense: distances in elements, extents, channels from the block's first one on.
struct BoxSource {
  int d, h, w;
  int depth, height, width, channels;
};

// Planes, rows and columns of pixels in shared memory, `vectors` pieces of 16 bytes each, `pitch` bytes from pixel to
// pixel.
struct Box {
  int planes, rows, columns, vectors, pitch;
  __device__ __forceinline__ int pixels() const { return planes * rows * columns; }
  __device__ __forceinline__ int bytes() const { return pixels() * pitch; }
};

// Where a box begins in an image; its planes stand `apart` from each other.
struct BoxPlace {
  int depth, top, left, apart;
};

// Which of the pieces of some pixels a thread has: piece `vector` of each `step`-th pixel from `first` on.
struct PieceShare {
  int vector, first, step;

  __device__ __forceinline__ PieceShare(int threads, int vectors) {
    first = static_cast<int>(threadIdx.x) / vectors;
    vector = static_cast<int>(threadIdx.x) - first * vectors;
    step = threads / vectors;
    if (first >= step) first = 1 << 30;  // vectors that do not divide the threads leave some without work
  }
};

// Asks for a box, zeros outside of the image; `image` points to the block's first channel.
template <int kThreads, typename T>
__device__ __forceinline__ void bring_box(unsigned smem, const T* image, const BoxSource& source, const Box& box,
                                          const BoxPlace& place) {
  constexpr int kPiece = 16 / sizeof(T);
  const PieceShare share(kThreads, box.vectors);
  const bool inside = share.vector * kPiece < source.channels;
  const int down = share.step / box.columns, across = share.step - down * box.columns, pixels = box.pixels();
  int row = share.first / box.columns, column = share.first - row * box.columns, depth = place.depth;
  unsigned to = smem + share.first * box.pitch + share.vector * 16;
  image += share.vector * kPiece;
  for (int pixel = share.first; pixel < pixels; pixel += share.step, to += share.step * box.pitch) {
    while (row >= box.rows) row -= box.rows, depth += place.apart;
    const int h = place.top + row, w = place.left + column;
    const bool there = inside && static_cast<unsigned>(depth) < static_cast<unsigned>(source.depth) &&
                       static_cast<unsigned>(h) < static_cast<unsigned>(source.height) &&
                       static_cast<unsigned>(w) < static_cast<unsigned>(source.width);
    cp_async_cg(to, there ? image + (depth * source.d + h * source.h + w * source.w) : image, there);
    row += down;
    column += across;
    if (column >= box.columns) column -= box.columns, ++row;
  }
}

// Tiles of outputs: `depths` x `rows` x `columns` of an image. Several depths only where the window has one plane.
struct Tiling {
  int depths, rows, columns, across, down, deep;  // and how many there are along each axis

  __device__ __forceinline__ Tiling(int depths_, int rows_, int columns_, const ConvAxes& axes)
      : depths(depths_),
        rows(rows_),
        columns(columns_),
        across((axes.w.out - 1) / columns_ + 1),
        down((axes.h.out - 1) / rows_ + 1),
        deep((axes.d.out - 1) / depths_ + 1) {}

  // The inputs that a tile reads.
  __device__ __forceinline__ Box box(const ConvAxes& axes, int vectors) const {
    return {axes.d.window == 1 ? depths : axes.d.window,
            (rows - 1) * axes.h.stride + (axes.h.window - 1) * axes.h.dilation + 1,
            (columns - 1) * axes.w.stride + (axes.w.window - 1) * axes.w.dilation + 1, vectors, (vectors | 1) * 16};
  }
};

struct TilePlace {
  int image, d, p, q;

  __device__ __forceinline__ TilePlace(int index, const Tiling& tiles) {
    const int by_w = index / tiles.across, by_h = by_w / tiles.down;
    q = (index - by_w * tiles.across) * tiles.columns;
    p = (by_w - by_h * tiles.down) * tiles.rows;
    image = by_h / tiles.deep;
    d = (by_h - image * tiles.deep) * tiles.depths;
  }
  __device__ __forceinline__ BoxPlace inputs(const ConvAxes& axes) const {
    return {d * axes.d.stride - axes.d.before, p * axes.h.stride - axes.h.before, q * axes.w.stride - axes.w.before,
            axes.d.window == 1 ? axes.d.stride : axes.d.dilation};
  }
};

// An image that blocks bring boxes of; `image` points to the block's first channel.
template <typename T>
struct BoxStream {
  const T* image;
  long long n;  // elements from image to image
  BoxSource source;
  Box box;

  template <int kThreads>
  __device__ __forceinline__ void bring(unsigned smem, int index, const BoxPlace& place) const {
    bring_box<kThreads>(smem, image + index * n, source, box, place);
  }
};

// A pixel of a tile: where its first input stands in the box, in bytes, and its depth, row and column.
struct TilePixel {
  int offset, place;
  __device__ __forceinline__ int depth() const { return place >> 20; }
  __device__ __forceinline__ int row() const { return place >> 10 & 1023; }
  __device__ __forceinline__ int column() const { return place & 1023; }
  __device__ __forceinline__ bool there() const { return place != kNone; }
  static constexpr int kNone = -1;  // of pixels behind the last one
};

// The pixels of a tile, filled up to `count`.
template <int kThreads>
__device__ __forceinline__ void list_pixels(TilePixel* smem, int count, const Tiling& tiles, const ConvAxes& axes,
                                            const Box& box) {
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int by_w = i / tiles.columns, depth = by_w / tiles.rows, row = by_w - depth * tiles.rows,
              column = i - by_w * tiles.columns;
    const int offset = ((depth * box.rows + row * axes.h.stride) * box.columns + column * axes.w.stride) * box.pitch;
    smem[i] =
        depth < tiles.depths ? TilePixel{offset, depth << 20 | row << 10 | column} : TilePixel{0, TilePixel::kNone};
  }
}

// Where the inputs of an item stand, from a pixel's first one on, in bytes; `chunks` are of a slab. Behind the last
// item stands the first.
template <int kThreads>
__device__ __forceinline__ void list_items(int* smem, int count, int items, int chunks, const ConvAxes& axes,
                                           const Box& box) {
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int item = i < items ? i : 0, tap = item / chunks;
    const Place at = Place::of(tap, axes.h.window, axes.w.window);
    smem[i] = ((at.d * box.rows + at.h * axes.h.dilation) * box.columns + at.w * axes.w.dilation) * box.pitch +
              (item - tap * chunks) * 16;
  }
}

// What a group's channels, a slab and a block's share of the slabs are.
struct GroupedSlabs {
  int groups, c, k;       // of the problem; channels of a group on both sides
  int together, in, out;  // groups of a slab, its chunks on both sides
  int across, first;      // slabs of a block; its first one
  int part;               // which chunks of the outputs of each slab it has
};

// A convolution of groups, as a kernel is given it.
template <typename T, typename R>
struct GroupedConvolution {
  using Result = R;
  const T *x, *w, *bias, *residual;
  R* y;
  ConvAxes axes;
  GroupedSlabs slabs;
  WeightStrides w_step;
  Strides x_step, y_step;
  float p, q;

  // Where the weights of an output stand, its channels of a slab counted from 0; null behind the last group.
  __device__ __forceinline__ const T* weights(int slab, int tap, int out) const {
    const int by_w = tap / axes.w.window, by_h = by_w / axes.h.window, group = out / slabs.k;
    const long long own = static_cast<long long>(slabs.first + slab) * slabs.together + group;
    const T* from = w + own * w_step.group + (out - group * slabs.k) * w_step.k;
    from += by_h * w_step.d + (by_w - by_h * axes.h.window) * w_step.h + (tap - by_w * axes.w.window) * w_step.w;
    return own < slabs.groups && by_h < axes.d.window ? from : nullptr;
  }
  // The one of them for an input of the slab; 0 where it is of another group.
  __device__ __forceinline__ T of_input(const T* weights, int in, int out) const {
    const int c = in - out / slabs.k * slabs.c;
    return weights && c >= 0 && c < slabs.c ? weights[c * w_step.c] : T{};
  }

  // One output by the definition.
  __device__ __forceinline__ float definition(int index, const Place& pixel, int channel) const {
    const int group = channel / slabs.k;
    const T* image = x + index * x_step.n + static_cast<long long>(group) * slabs.c;
    const T* weight = w + group * w_step.group + (channel - group * slabs.k) * w_step.k;
    float sum = bias ? widen(bias[channel]) : 0.0f;
    Place tap{0, 0, 0};
    do {
      const long long at = axes.input(pixel, tap, x_step);
      if (at < 0) continue;
      const T* here = weight + tap.d * w_step.d + tap.h * w_step.h + tap.w * w_step.w;
#pragma unroll 1
      for (int c = 0; c < slabs.c; ++c) sum += widen(image[at + c]) * widen(here[c * w_step.c]);
    } while (!tap.next(axes.d.window, axes.h.window, axes.w.window));
    return sum;
  }
};

// Where an output stands, or none where it is outside of the image.
struct GroupedOutput {
  Place at;
  bool there;
  long long offset;  // in y and the residual, of the first channel

  template <typename Arguments>
  __device__ __forceinline__ GroupedOutput(const Arguments& a, const TilePlace& tile, const TilePixel& pixel)
      : at{tile.d + pixel.depth(), tile.p + pixel.row(), tile.q + pixel.column()} {
    there = pixel.there() && at.d < a.axes.d.out && at.h < a.axes.h.out && at.w < a.axes.w.out;
    offset = tile.image * a.y_step.n + at.d * a.y_step.d + at.h * a.y_step.h + at.w * a.y_step.w;
  }
};

// Computes again what is NaN of `kCount` channels that have been stored.
template <typename Config, int kCount, typename Arguments>
__device__ __forceinline__ void repair_output(const Arguments& a, int image, const GroupedOutput& output, int channel) {
  auto* y = a.y + output.offset + channel;
#pragma unroll 1
  for (int j = 0; j < kCount; ++j) {
    if (widen(y[j]) == widen(y[j])) continue;
    float sum = a.definition(image, output.at, channel + j);
    if (Config::kResidual) sum += widen(a.residual[output.offset + channel + j]);
    y[j] = narrow<typename Arguments::Result>(Config::Activation::forward(sum, a.p, a.q));
  }
}

// Steps of images with dense channels, which are not asked for those of the channels.
__device__ __forceinline__ Strides with_channels(const PixelStrides& s) { return {s.n, 0, s.d, s.h, s.w}; }

// The slabs of a block, `part` of their outputs, as the arguments of a kernel say.
template <typename Arguments>
__device__ __forceinline__ GroupedSlabs slabs_of(const Arguments& a, int chunk, int range, int part) {
  return {a.groups,         a.c, a.k, a.together, a.together * a.c / chunk, a.together * a.k / chunk, a.across,
          range * a.across, part};
}

// What a block brings, tile by tile.
template <typename T>
struct GroupedFixed {
  Tiling tiles;
  ConvAxes axes;
  BoxStream<T> x;
};

}  // namespace dnnarray
