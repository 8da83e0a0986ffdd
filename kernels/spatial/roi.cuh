// The samples of a region's bins along one axis.
#pragma once

#include "dnnarray/ptx/memory.cuh"
#include "spatial/sampling.cuh"

namespace dnnarray {

// A sample: the pixels around it, their weights, and whether it counts: up to a pixel outside the border is read,
//           further out is 0.
template <typename A>
struct Sample {
  int pixel[2];
  A weight[2];
  bool inside;

  __device__ __forceinline__ Sample(A place, int extent) {
    inside = place >= A(-1) && place <= A(extent);
    place = clipped(place, A(extent - 1));
    const A low = floor_of(place);
    pixel[0] = static_cast<int>(low);
    pixel[1] = pixel[0] + 1 < extent ? pixel[0] + 1 : extent - 1;
    weight[1] = place - low;
    weight[0] = A(1) - weight[1];
  }
};

// Along one axis of a box: `count` samples in each of its bins. [first, end) holds all of a bin's samples that may
// count.
template <typename A>
struct Side {
  A low, step;
  long long count;
  bool valid;

  __device__ __forceinline__ Side(A from, A to, A scale, A offset, bool at_least_one, long long bins, long long ratio) {
    low = from * scale - offset;
    A size = to * scale - offset - low;
    if (at_least_one && size < A(1)) size = A(1);
    step = size / A(bins);
    // No more than 2^24 pixels away, as on the host, where samples can be counted.
    valid = from * scale < A(16777216) && from * scale > A(-16777216) && to * scale < A(16777216) &&
            to * scale > A(-16777216);
    const A wanted = ceil_of(step);
    count = ratio > 0 ? ratio : valid && wanted > A(0) ? static_cast<long long>(wanted) : 0;
  }

  __device__ __forceinline__ A place(long long bin, long long i) const {
    return low + step * (A(bin) + (A(i) + A(0.5)) / A(count));
  }

  // Bounds with a sample to spare, so that rounding leaves none out; where the step is not positive, all samples.
  __device__ __forceinline__ void range(long long bin, int extent, long long& first, long long& end) const {
    first = 0;
    end = count;
    if (!(step > A(0)) || count <= 4) return;
    const A start = low + step * A(bin), between = step / A(count);
    const A from = (A(-1) - start) / between - A(2), to = (A(extent) - start) / between + A(2);
    if (from > A(0)) first = from < A(count) ? static_cast<long long>(from) : count;
    if (to < A(count)) end = to > A(0) ? static_cast<long long>(to) : 0;
    if (end < first) end = first;
  }
};

// A box: its image and both sides.
template <typename A>
struct Box {
  long long image;
  Side<A> down, across;
  bool valid;

  template <typename T>
  static __device__ __forceinline__ Box read(const T* box, long long images, A scale, bool aligned, long long p,
                                             long long q, long long ratio) {
    const A offset = aligned ? A(0.5) : A(0), index = widen(box[0]);
    Box found{0, Side<A>(widen(box[2]), widen(box[4]), scale, offset, !aligned, p, ratio),
              Side<A>(widen(box[1]), widen(box[3]), scale, offset, !aligned, q, ratio),
              index >= A(0) && index < A(images)};
    found.valid = found.valid && found.down.valid && found.across.valid;
    if (found.valid) found.image = static_cast<long long>(index);
    return found;
  }
};

// An element of shared memory by its 32-bit address.
__device__ __forceinline__ void read_shared(unsigned address, unsigned short& bits) { bits = ld_shared_u16(address); }
__device__ __forceinline__ void read_shared(unsigned address, unsigned& bits) { bits = ld_shared_u32(address); }
__device__ __forceinline__ void read_shared(unsigned address, unsigned long long& bits) {
  bits = ld_shared_u64(address);
}
template <int kSize>
struct BitsOf {
  using type = unsigned;
};
template <>
struct BitsOf<2> {
  using type = unsigned short;
};
template <>
struct BitsOf<8> {
  using type = unsigned long long;
};
template <typename T>
__device__ __forceinline__ T read_shared(unsigned address) {
  typename BitsOf<sizeof(T)>::type bits;
  read_shared(address, bits);
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// A tap along one side of a box with `ratio` samples in each bin: the pixel, -1 where its sample does not count, and
// its weight.
template <typename A>
struct alignas(2 * sizeof(A)) BoxTap {
  A weight;
  int pixel;

  BoxTap() = default;
  __device__ __forceinline__ BoxTap(const Side<A>& side, long long tap, long long ratio, int extent) {
    const Sample<A> sample(side.place(tap / (2 * ratio), tap % (2 * ratio) / 2), extent);
    pixel = sample.inside ? (tap % 2 ? sample.pixel[1] : sample.pixel[0]) : -1;
    weight = tap % 2 ? sample.weight[1] : sample.weight[0];
  }
};

// A sample along one side of a box with `ratio` samples in each bin: the pixel before it, -1 where it does not count,
// and the weight of the next.
template <typename A>
struct alignas(2 * sizeof(A)) BoxSample {
  A part;
  int pixel;

  BoxSample() = default;
  __device__ __forceinline__ BoxSample(const Side<A>& side, long long number, long long ratio, int extent) {
    const Sample<A> sample(side.place(number / ratio, number % ratio), extent);
    pixel = sample.inside ? sample.pixel[0] : -1;
    part = sample.weight[1];
  }
};

}  // namespace dnnarray
