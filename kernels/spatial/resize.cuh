// Resampling along one axis: which source elements a target element reads, and their weights. All in double, as
// positions decide.
#pragma once

#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

enum ResizeMode {
  kResizeNearest,
  kResizeNearestExact,
  kResizeLinear,
  kResizeCubic,
  kResizeArea,
  kResizeLinearSmooth,
  kResizeCubicSmooth
};

struct Taps {
  long long first, count;
};

// The cubic convolution kernel (Keys, 1981) at a distance of t >= 0.
__device__ __forceinline__ double cubic_weight(double t, double a) {
  if (t < 1.0) return ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0;
  return t < 2.0 ? ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a : 0.0;
}

// `step` source elements for each target element; `whole`: it is source / target exactly.
struct Resize {
  long long source, target, mode, corners, whole;
  double step;

  __device__ __forceinline__ double place(long long i) const { return corners ? i * step : (i + 0.5) * step - 0.5; }
  __device__ __forceinline__ long long clip(long long s) const { return s < 0 ? 0 : s < source ? s : source - 1; }
  __device__ __forceinline__ double stretch() const { return step > 1.0 ? step : 1.0; }

  __device__ __forceinline__ Taps taps(long long i) const {
    switch (mode) {
      case kResizeNearest:
      case kResizeNearestExact: {
        const long long half = mode == kResizeNearestExact;
        const long long index =
            whole ? (2 * i + half) * source / (2 * target) : static_cast<long long>(floor((i + 0.5 * half) * step));
        return {clip(index), 1};
      }
      case kResizeLinear: {
        const long long low = clip(static_cast<long long>(fmax(place(i), 0.0)));
        return {low, low + 1 < source ? 2 : 1};
      }
      case kResizeCubic: {
        const long long low = cubic_low(i), first = clip(low - 1);
        return {first, clip(low + 2) - first + 1};
      }
      case kResizeArea: {
        const long long first = i * source / target;
        return {first, ((i + 1) * source + target - 1) / target - first};
      }
      default: {
        const double reach = (mode == kResizeLinearSmooth ? 1 : 2) * stretch(), centre = step * (i + 0.5);
        const long long first = static_cast<long long>(fmax(centre - reach + 0.5, 0.0));
        const long long end = static_cast<long long>(centre + reach + 0.5);
        return {first, (end < source ? end : source) - first};
      }
    }
  }

  // The weight of source element s, one of the taps of i.
  __device__ __forceinline__ double weight(long long i, long long s) const {
    switch (mode) {
      case kResizeNearest:
      case kResizeNearestExact:
        return 1.0;
      case kResizeLinear: {
        const Taps found = taps(i);
        const double part = fmin(fmax(place(i), 0.0) - found.first, 1.0);
        return found.count == 1 ? 1.0 : s == found.first ? 1.0 - part : part;
      }
      case kResizeCubic: {
        const long long low = cubic_low(i);
        const double part = fmin(fmax(place(i) - low, 0.0), 1.0);
        double sum = 0.0;
        for (int k = -1; k <= 2; ++k) sum += clip(low + k) == s ? cubic_weight(fabs(k - part), -0.75) : 0.0;
        return sum;
      }
      case kResizeArea:
        return 1.0 / taps(i).count;
      default: {
        const Taps found = taps(i);
        double total = 0.0;
        for (long long k = 0; k < found.count; ++k) total += smooth(i, found.first + k);
        return smooth(i, s) / total;
      }
    }
  }

 private:
  __device__ __forceinline__ long long cubic_low(long long i) const {
    const long long low = static_cast<long long>(floor(place(i)));
    return low < source ? low : source - 1;
  }

  // The stretched kernel, before its weights are made to sum to 1.
  __device__ __forceinline__ double smooth(long long i, long long s) const {
    const double distance = fabs((s - step * (i + 0.5) + 0.5) / stretch());
    return mode == kResizeLinearSmooth ? fmax(1.0 - distance, 0.0) : cubic_weight(distance, -0.5);
  }
};

// `options`: the mode, 16 for align_corners, 32 for a step that is exactly source / target.
__device__ __forceinline__ Resize resize_of(long long source, long long target, long long options, double step) {
  return {source, target, options & 15, options & 16, options & 32, step};
}

// The first of n target elements for which `passed` holds; it does for all behind. Looked for from `guess` on, in steps
// that double.
template <typename Predicate>
__device__ __forceinline__ long long first_where(long long n, long long guess, Predicate passed) {
  long long low = 0, high = n;  // what is looked for lies in [low, high]
  long long at = guess < 0 ? 0 : guess < n ? guess : n - 1;
  for (long long step = 1; low < high; step *= 2) {
    if (passed(at)) {
      high = at;
      if (low > 0) break;
      at = at > step ? at - step : 0;
    } else {
      low = at + 1;
      if (high < n) break;
      at = at + step < n ? at + step : n - 1;
    }
  }
  while (low < high) {
    const long long middle = (low + high) / 2;
    if (passed(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The taps of element i: source elements of a target element, or (kTransposed) the target elements that read a source
// element, which are neighbours since the taps move on with the target element.
template <bool kTransposed>
__device__ __forceinline__ Taps taps_of(const Resize& resize, long long i) {
  if constexpr (!kTransposed) return resize.taps(i);
  Taps found;
  const long long guess = resize.step > 0.0 ? static_cast<long long>((i - 1) / resize.step) : 0;
  found.first =
      first_where(resize.target, guess, [&](long long t) { return resize.taps(t).first + resize.taps(t).count > i; });
  found.count =
      first_where(resize.target, found.first + 1, [&](long long t) { return resize.taps(t).first > i; }) - found.first;
  return found;
}

template <bool kTransposed>
__device__ __forceinline__ double weight_of(const Resize& resize, long long i, long long tap) {
  return kTransposed ? resize.weight(tap, i) : resize.weight(i, tap);
}

}  // namespace dnnarray
