// Places between the pixels of an axis: the taps of a place, each an index, a weight and the slope of that weight.
#pragma once

#include "dnnarray/core/division.cuh"
#include "dnnarray/core/reduce.cuh"

namespace dnnarray {

enum Mode { kNearest = 1, kBilinear = 2, kBicubic = 4 };  // the number of taps along an axis
enum Padding { kZeros, kBorder, kReflection };

__device__ __forceinline__ float floor_of(float x) { return floorf(x); }
__device__ __forceinline__ double floor_of(double x) { return floor(x); }
__device__ __forceinline__ float rint_of(float x) { return rintf(x); }
__device__ __forceinline__ double rint_of(double x) { return rint(x); }
__device__ __forceinline__ float ceil_of(float x) { return ceilf(x); }
__device__ __forceinline__ double ceil_of(double x) { return ceil(x); }
__device__ __forceinline__ float mod_of(float x, float y) { return fmodf(x, y); }
__device__ __forceinline__ double mod_of(double x, double y) { return fmod(x, y); }
// The number of the last pixel, rounded towards 0: never beyond it.
__device__ __forceinline__ float last_of(int extent, float) { return __int2float_rz(extent - 1); }
__device__ __forceinline__ double last_of(int extent, double) { return extent - 1; }
// Into [0, last]; NaN becomes 0.
__device__ __forceinline__ float clipped(float x, float last) { return fminf(fmaxf(x, 0.0f), last); }
__device__ __forceinline__ double clipped(double x, double last) { return fmin(fmax(x, 0.0), last); }

// The cubic convolution kernel of parameter -0.75 at distances of [0, 1] and [1, 2], and its derivatives.
template <typename A>
struct Cubic {
  static constexpr A a = A(-0.75);
  static __device__ __forceinline__ A near(A t) { return ((a + A(2)) * t - (a + A(3))) * t * t + A(1); }
  static __device__ __forceinline__ A far(A t) { return ((a * t - A(5) * a) * t + A(8) * a) * t - A(4) * a; }
  static __device__ __forceinline__ A near_slope(A t) { return (A(3) * (a + A(2)) * t - A(2) * (a + A(3))) * t; }
  static __device__ __forceinline__ A far_slope(A t) { return (A(3) * a * t - A(10) * a) * t + A(8) * a; }
};

template <int kMode, int kPadding, bool kCorners, typename A>
struct Axis {
  int index[kMode];
  bool inside[kMode];
  A weight[kMode], slope[kMode], rate;  // rate: derivative of the place in pixels by the coordinate

  __device__ __forceinline__ Axis(A coordinate, int extent) {
    const A last = last_of(extent, A(0));
    A place = kCorners ? (coordinate + A(1)) * (last / A(2)) : ((coordinate + A(1)) * A(extent) - A(1)) / A(2);
    rate = kCorners ? last / A(2) : A(extent) / A(2);
    if constexpr (kMode == kBicubic) {
      const A low = floor_of(place), part = place - low;
      using C = Cubic<A>;
      const A weights[4] = {C::far(part + A(1)), C::near(part), C::near(A(1) - part), C::far(A(2) - part)};
      const A slopes[4] = {C::far_slope(part + A(1)), C::near_slope(part), -C::near_slope(A(1) - part),
                           -C::far_slope(A(2) - part)};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        A number = low + A(k - 1);
        padded(number, extent);
        tap(k, number, last, weights[k], slopes[k]);
      }
    } else {
      rate *= padded(place, extent);
      if constexpr (kMode == kNearest) {
        tap(0, rint_of(place), last, A(1), A(0));
      } else {
        const A low = floor_of(place), part = place - low;
        tap(0, low, last, A(1) - part, A(-1));
        tap(1, low + A(1), last, part, A(1));
      }
    }
  }

 private:
  // A tap at a whole number, which may lie outside or be NaN: there it counts as 0.
  __device__ __forceinline__ void tap(int k, A number, A last, A its_weight, A its_slope) {
    inside[k] = number >= A(0) && number <= last;
    index[k] = static_cast<int>(clipped(number, last));
    weight[k] = its_weight;
    slope[k] = its_slope;
  }

  // Moves the place to where the padding reads instead; returns the derivative of the new place by the old.
  static __device__ __forceinline__ A padded(A& place, int extent) {
    if constexpr (kPadding == kZeros) return A(1);
    const A last = last_of(extent, A(0));
    A derivative = A(1);
    if constexpr (kPadding == kReflection) derivative = reflected(place, extent);
    if (!(place > A(0) && place < last)) derivative = A(0);
    place = clipped(place, last);
    return derivative;
  }

  // Mirrored at the centres of the border pixels (kCorners) or at their outer edges, as often as needed.
  static __device__ __forceinline__ A reflected(A& place, int extent) {
    const A low = kCorners ? A(0) : A(-0.5), span = kCorners ? A(extent - 1) : A(extent);
    if (span == A(0)) {
      place = A(0);
      return A(0);
    }
    A turn = mod_of(place - low, A(2) * span);
    if (turn < A(0)) turn += A(2) * span;
    const bool back = turn > span;
    place = (back ? A(2) * span - turn : turn) + low;
    return back ? A(-1) : A(1);
  }
};

// Divides off the last axis: returns index % extent and leaves index / extent.
__device__ __forceinline__ long long split(long long& index, long long extent) {
  if (index < 0x100000000ll && extent < 0x100000000ll) {  // the short division takes a fraction of the time
    const unsigned whole = static_cast<unsigned>(index), by = static_cast<unsigned>(extent);
    index = whole / by;
    return whole % by;
  }
  const long long rest = index % extent;
  index /= extent;
  return rest;
}

// A place of a grid along all axes of an image; two of them, or three with `deep` being the slowest.
template <typename T, int kRank, int kMode, int kPadding, bool kCorners>
struct GridPlace {
  using A = arithmetic_t<T>;
  static constexpr int kDeep = kRank == 3 ? kMode : 1, kTaps = kDeep * kMode * kMode;
  using Along = Axis<kMode, kPadding, kCorners, A>;
  Along across, down, deep;

  // `at` points at x, y and z.
  __device__ __forceinline__ GridPlace(const T* at, long long depth, long long height, long long width)
      : across(widen(at[0]), width),
        down(widen(at[1]), height),
        deep(kRank == 3 ? widen(at[kRank - 1]) : A(0), kRank == 3 ? depth : 1) {}

  __device__ __forceinline__ A weight(int k, int i, int j) const {
    const A flat = down.weight[i] * across.weight[j];
    return kRank == 3 ? flat * deep.weight[k] : flat;
  }
  __device__ __forceinline__ bool inside(int k, int i, int j) const {
    return down.inside[i] && across.inside[j] && (kRank < 3 || deep.inside[k]);
  }
  // Where the pixel stands for these steps along the axes.
  template <typename Index>
  __device__ __forceinline__ Index pixel(int k, int i, int j, Index slice, Index row, Index column) const {
    const Index flat = down.index[i] * row + across.index[j] * column;
    return kRank == 3 ? deep.index[k] * slice + flat : flat;
  }
  // body(k, i, j) for all taps.
  template <typename Body>
  static __device__ __forceinline__ void each(Body body) {
#pragma unroll
    for (int k = 0; k < kDeep; ++k) {
#pragma unroll
      for (int i = 0; i < kMode; ++i) {
#pragma unroll
        for (int j = 0; j < kMode; ++j) body(k, i, j);
      }
    }
  }
};

// The same where the host has prepared what a Divisor takes, or 0 where the index may be too large for one.
__device__ __forceinline__ long long split(long long& index, long long extent, long long magic) {
  if (magic == 0) return split(index, extent);
  const Divisor by(extent, magic);
  const unsigned whole = static_cast<unsigned>(index), quotient = by.quotient(whole);
  index = quotient;
  return whole - quotient * by.n;
}

// How places and channels are shared out among threads, `per` channels to each: `parts` neighbouring threads differ in
// their channels (kChannelsLast), or in their places, of all images; o, p, q are the extents of the places, and by_*
// divide by the extents.
struct Shares {
  long long threads, channels, per, parts, by_parts, o, by_o, p, by_p, q, by_q;
};

// The share of thread `index`.
template <bool kChannelsLast>
struct PlaceAndChannels {
  long long own, n, slice, row, column, first, end;  // the number of the place, its image and coordinates; the channels

  __device__ __forceinline__ PlaceAndChannels(long long index, const Shares& of) {
    const long long part = split(index, of.parts, of.by_parts);
    own = n = kChannelsLast ? index : part;
    first = (kChannelsLast ? part : index) * of.per;
    end = first + of.per < of.channels ? first + of.per : of.channels;
    column = split(n, of.q, of.by_q), row = split(n, of.p, of.by_p), slice = of.o == 1 ? 0 : split(n, of.o, of.by_o);
  }
};

// Elements between neighbours along batch, channels and three spatial axes.
struct Strides {
  long long n, c, space[3];
};

}  // namespace dnnarray
