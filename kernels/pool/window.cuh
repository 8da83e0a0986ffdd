// Windows over spatial axes, for pooling: which taps of a window lie in the input, which windows cover an element; and
// norms of what is in them.
#pragma once

#include "dnnarray/ptx/approximate.cuh"
#include "dnnarray/core/strides.cuh"

namespace dnnarray {

template <typename A>
__device__ __forceinline__ A magnitude(A x) {
  return x < A(0) ? A(-x) : x == A(0) ? A(0) : x;
}

__device__ __forceinline__ float power_of(float x, float p) { return powf(x, p); }
__device__ __forceinline__ double power_of(double x, double p) { return pow(x, p); }
__device__ __forceinline__ float square_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double square_root(double x) { return sqrt(x); }

// x^p and x^(1/p) for x of 0 or more; norms are of floating numbers.
template <typename A>
__device__ __forceinline__ A power(A x, A p) {
  if constexpr (Number<A>::kInteger) {
    return x;
  } else {
    return p == A(1) ? x : p == A(2) ? x * x : power_of(x, p);
  }
}
template <typename A>
__device__ __forceinline__ A root(A x, A p) {
  if constexpr (Number<A>::kInteger) {
    return x;
  } else {
    return p == A(1) ? x : p == A(2) ? square_root(x) : power_of(x, A(1) / p);
  }
}

// The root of x of 0 or more, to one unit of the last place for float where x is a normal number.
template <typename A>
__device__ __forceinline__ A near_root(A x) {
  return root(x, A(2));
}
__device__ __forceinline__ float near_root(float x) {
#if __CUDA_ARCH__ >= 800
  return sqrt_approx_ftz(x);
#else
  return sqrtf(x);
#endif
}

// 1 / root of x above 0, likewise.
template <typename A>
__device__ __forceinline__ A near_inverse_root(A x) {
  return A(1) / root(x, A(2));
}
__device__ __forceinline__ float near_inverse_root(float x) { return rsqrt_approx_ftz(x); }

// Whether sums of squares of a type stay in the range of what it is computed in.
template <typename T>
constexpr bool kSquaresFit = false;
template <>
constexpr bool kSquaresFit<float16_t> = true;

// What a norm's elements are divided by where their powers would leave the range of numbers.
template <typename A>
__device__ __forceinline__ A scale_of(A largest) {
  return largest > A(0) && largest - largest == A(0) ? largest : A(1);
}

// Whether a sum of powers may have lost terms, or gained infinity, at the ends of the range of numbers.
template <typename A>
__device__ __forceinline__ bool out_of_range(A sum) {
  return !(sum > A(1e-30) && sum < A(1e30));
}
// By one comparison of bits, for a sum of 0 or more, or NaN.
__device__ __forceinline__ bool out_of_range(float sum) {
  constexpr unsigned kLow = 0x0da24260, kHigh = 0x7149f2ca;  // 1e-30, 1e30
  return __float_as_uint(sum) - kLow > kHigh - kLow;
}

// 1 / x, to one unit of the last place for float.
template <typename A>
__device__ __forceinline__ A inverse(A x) {
  return A(1) / x;
}
__device__ __forceinline__ float inverse(float x) {
#if __CUDA_ARCH__ >= 800
  return rcp_approx_ftz(x);
#else
  return 1 / x;
#endif
}

template <typename A>
__device__ __forceinline__ A sign(A x) {
  return x > A(0) ? A(1) : x < A(0) ? A(-1) : x;
}

// What an Lp norm with the gradient g gives to a magnitude x in it: g (x / norm)^(p - 1); for p below 1 nothing where x
// is 0.
template <typename A>
__device__ __forceinline__ A norm_gradient(A g, A x, A norm, A p) {
  if (p == A(1)) return g;
  return p < A(1) && x == A(0) ? A(0) : g * power(x / (norm == A(0) ? A(1) : norm), p - A(1));
}

// How small_windows.cu numbers a tap of a small window: what comes first in the window has the smaller number.
__device__ constexpr int tap_code(int row, int column) { return row * 8 + column; }

// What a reduction leaves of a window: the value, rounded to R, or where it stands.
template <bool kPlace, typename R, typename A, typename P>
__device__ __forceinline__ R kept(A value, P place) {
  if constexpr (kPlace) {
    return static_cast<R>(place);
  } else {
    return Number<R>::narrowed(value);
  }
}

// --- division with remainder ---

// The same by a number that the host has prepared: for a below 2^31, a / divisor = a * magic / 2^(32 + shift); a magic
// of 0 says that a may be larger.
struct Divider {
  int divisor, shift;
  unsigned magic;
  __device__ __forceinline__ Split operator()(long long a) const {
    if (magic == 0) return split(a, divisor);
    const unsigned q = __umulhi(static_cast<unsigned>(a), magic) >> shift;
    return {q, static_cast<int>(static_cast<unsigned>(a) - q * static_cast<unsigned>(divisor))};
  }
};

// --- windows along one axis ---

// Taps [first, last) of a window lie in the input; tap t stands at start + t * dilation.
struct Taps {
  int start, first, last;
};

// Windows [first, last] may cover an element.
struct Cover {
  int first, last;
};

// An axis whose windows the compiler knows: the extents of x and y, and the padding.
struct Side {
  int extent, outputs, before, after;
};

// Output i looks at i * stride - before + t * dilation for each tap t.
template <bool kAdaptive>
struct Axis {
  int extent, outputs, window, stride, dilation, before, after;

  __device__ __forceinline__ Axis(const Side& side, int window, int stride)
      : extent(side.extent),
        outputs(side.outputs),
        window(window),
        stride(stride),
        dilation(1),
        before(side.before),
        after(side.after) {}

  __device__ __forceinline__ Taps taps(int i) const {
    const int start = i * stride - before;
    int first = max(-start, 0), room = max(extent - start, 0);
    if (dilation != 1) first = (first + dilation - 1) / dilation, room = (room + dilation - 1) / dilation;
    return {start, first, max(min(window, room), first)};
  }

  // Taps that an average divides by: those in the input, or in the padded input; of nothing, 1.
  __device__ __forceinline__ int count(const Taps& t, bool padded) const {
    if (!padded) return max(t.last - t.first, 1);
    int room = extent + after - t.start;
    if (dilation != 1) room = (room + dilation - 1) / dilation;
    return max(min(window, room), 1);
  }

  __device__ __forceinline__ Cover cover(int place) const {
    const int reach = place + before - (window - 1) * dilation;
    return {reach > 0 ? quotient(reach + stride - 1, stride) : 0, min(quotient(place + before, stride), outputs - 1)};
  }

  // Which tap of window i stands at this place, -1 if none does.
  __device__ __forceinline__ int tap_at(int place, int i) const {
    const int distance = place + before - i * stride;
    if (dilation == 1) return distance;
    const int t = distance / dilation;
    return t * dilation == distance ? t : -1;
  }
};

// Adaptive: output i looks at floor(i n / o) up to ceil((i + 1) n / o); `window` is the longest. Beside the extents
//           stands what dividing by them takes.
template <>
struct Axis<true> {
  int extent, outputs, window, extent_shift;
  unsigned extent_magic;
  int outputs_shift;
  unsigned outputs_magic;
  static constexpr int dilation = 1;

  __device__ __forceinline__ Divider by_extent() const { return {extent, extent_shift, extent_magic}; }
  __device__ __forceinline__ Divider by_outputs() const { return {outputs, outputs_shift, outputs_magic}; }
  __device__ __forceinline__ int start(int i) const {
    return static_cast<int>(by_outputs()(static_cast<long long>(i) * extent).quotient);
  }
  __device__ __forceinline__ int end(int i) const {
    return static_cast<int>(by_outputs()(static_cast<long long>(i + 1) * extent + outputs - 1).quotient);
  }
  __device__ __forceinline__ Taps taps(int i) const { return {start(i), 0, end(i) - start(i)}; }
  __device__ __forceinline__ int count(const Taps& t, bool) const { return max(t.last, 1); }
  __device__ __forceinline__ Cover cover(int place) const {
    const long long first = static_cast<long long>(place) * outputs;
    return {static_cast<int>(by_extent()(first).quotient),
            static_cast<int>(by_extent()(first + outputs + extent - 1).quotient) - 1};
  }
  __device__ __forceinline__ int tap_at(int place, int i) const { return place - start(i); }
};

// Which of the columns [w, w + kColumns) lie in a window, as bits.
template <int kColumns>
__device__ __forceinline__ unsigned columns_inside(const Taps& window, int w) {
  const int first = max(window.start + window.first - w, 0), last = min(window.start + window.last - w, kColumns);
  return first < last ? (~0u << first) & ~(~0u << last) : 0;
}

}  // namespace dnnarray
