// Depthwise convolution that walks down its images: a block owns some channels of a tile, which is a range of columns
// of one or several images, and brings kLines rows of it a step to shared memory, several steps ahead of those that it
// computes. Each row is brought once.
#pragma once

#include "dnnarray/ptx/mbarrier.cuh"
#include "dnnarray/ptx/opaque.cuh"
#include "conv/depthwise.cuh"

namespace dnnarray {

// What a block works on. `vectors` are 16-byte pieces of a pixel's channels, `pixel` bytes from pixel to pixel in
// shared memory.
struct StreamTile {
  int image, images,
      groups;          // the first image, how many there are in all, how many stand beside each other in the tile
  int left, pitch;     // first input column and how many
  int first, vectors;  // first channel
  int pixel;
};

struct StreamSource {
  long long n, h, w;  // distances, in elements
  int height, width, channels;
};

// A thread's share of a step: kShare pieces at most, `beside` pixels from one to the next. Pixels stand by (group,
// line, column).
template <typename T, int kLines, int kShare>
struct RowStream {
  const T* from;
  int offset[kShare];  // elements from `from`
  int row;
  // kShare bits for each line: which pieces are of it and inside of the image as far as columns and channels say; then
  // those that there are.
  unsigned bits, to;
  static_assert((kLines + 1) * kShare <= 32, "bits of a share");

  __device__ __forceinline__ RowStream(const T* x, const StreamSource& source, const StreamTile& tile, int top,
                                       int beside)
      : RowStream(x, source, tile, top, beside, [&](int pixel) { return divide(pixel, tile.pitch); }) {}

  // `by_pitch` divides by the columns of the tile.
  template <typename ByPitch>
  __device__ __forceinline__ RowStream(const T* x, const StreamSource& source, const StreamTile& tile, int top,
                                       int beside, const ByPitch& by_pitch)
      : bits(0) {
    constexpr int kPiece = 16 / sizeof(T);
    const Quotient own = divide(threadIdx.x, tile.vectors);
    const int channel = tile.first + own.rest * kPiece;
    from = x + tile.image * source.n + top * source.h + tile.left * source.w + channel;
    row = top;
    to = own.quotient * tile.pixel + own.rest * 16;
#pragma unroll
    for (int k = 0; k < kShare; ++k) {
      const Quotient by_column = by_pitch(own.quotient + k * beside);
      const int group = by_column.quotient / kLines, line = by_column.quotient - group * kLines,
                at = tile.left + by_column.rest;
      offset[k] = static_cast<int>(group * source.n + line * source.h + by_column.rest * source.w);
      const bool there = static_cast<unsigned>(at) < static_cast<unsigned>(source.width) &&
                         static_cast<unsigned>(tile.image + group) < static_cast<unsigned>(tile.images);
      if (there && channel < source.channels) bits |= 1u << (line * kShare + k);
      if (own.quotient + k * beside < kLines * tile.groups * tile.pitch) bits |= 1u << (kLines * kShare + k);
    }
  }

  // Asks for the next step; `smem` is the address of its place, `pass` the bytes of `beside` pixels.
  __device__ __forceinline__ void bring(unsigned smem, const StreamSource& source, unsigned pass) {
    unsigned there = 0, at = smem + to;
    opaque(at);  // or it would be computed for each piece
#pragma unroll
    for (int l = 0; l < kLines; ++l)
      there |= static_cast<unsigned>(row + l) < static_cast<unsigned>(source.height) ? bits >> l * kShare : 0;
#pragma unroll
    for (int k = 0; k < kShare; ++k) {
      if (bits >> (kLines * kShare + k) & 1) cp_async_cg_l2_128b(at + k * pass, from + offset[k], there >> k & 1);
    }
    from += kLines * source.h;
    row += kLines;
  }
};

// The barriers of a ring of kStages steps in shared memory: its inputs are there; all warps have done with it. A step's
// place is filled again two steps later, so that warps need not keep in step.
template <int kStages>
struct StepRing {
  static constexpr int kAhead = kStages - 2;  // steps on their way
  unsigned full, done;

  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        mbarrier_init(full + s * 8, blockDim.x);
        mbarrier_init(done + s * 8, blockDim.x / 32);
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ void brought(int place) const { cp_async_mbarrier_arrive(full + place * 8); }
  __device__ __forceinline__ void wait_for_inputs(int place, unsigned parity) const {
    mbarrier_wait(full + place * 8, parity);
  }
  __device__ __forceinline__ void leave(int place) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(done + place * 8);
  }
  __device__ __forceinline__ void wait_for_all(int place, unsigned parity) const {
    mbarrier_wait(done + place * 8, parity);
  }
};

}  // namespace dnnarray
