// The largest of several elements and its code, for maxima that are told where they stand: of equal ones the first. Of
// halves by twos, from sm_90 on.
#pragma once

#include "dnnarray/mma/warp.cuh"
#include "pool/window.cuh"

namespace dnnarray {

// Of NaN the code is some code, and of what is outside of x it is outside too: a result that is to be looked at again
// tells by `watch`. `kAlways` says that any may be.
template <typename T, bool kPair, bool kMagnitude>
struct Best {
  using A = typename Number<T>::type;
  using Word = A;  // what it is made of
  static constexpr int kEach = 1;
  static constexpr bool kAlways = Number<T>::kInteger || kMagnitude;
  A value;
  int code;

  Best() = default;
  __device__ __forceinline__ Best(A x, int at) : value(x), code(at) {}
  static __device__ __forceinline__ int repeated(int at) { return at; }
  __device__ __forceinline__ void meet(const Best& later) {
    code = value >= later.value ? code : later.code;
    value = larger(value, later.value);
  }
  using Watch = A;  // no number once one was not finite
  __device__ __forceinline__ void watch(Watch& special) const {
    if constexpr (!kAlways) special += value * A(0);
  }
  static __device__ __forceinline__ bool is_special(Watch special) { return kAlways || special != special; }
  __device__ __forceinline__ A at(int) const { return value; }
  __device__ __forceinline__ T element(int) const { return Number<T>::narrowed(value); }
  __device__ __forceinline__ int where(int) const { return code; }
};

// Of two windows, or channels, of a half type.
#if __CUDA_ARCH__ >= 900
template <typename T, bool kMagnitude>
struct Best<T, true, kMagnitude> {
  using A = typename Number<T>::type;
  using Word = unsigned;
  static constexpr int kEach = 2;
  static constexpr bool kAlways = kMagnitude;
  unsigned value, code;

  Best() = default;
  __device__ __forceinline__ Best(unsigned x, unsigned twice) : value(x), code(twice) {}
  static __device__ __forceinline__ unsigned repeated(int at) { return at * 0x10001u; }
  __device__ __forceinline__ void meet(const Best& later) {
    const unsigned larger = larger_pair(value, later.value, T{}), stays = equal_pair(larger, value, T{});
    code = (stays & code) | (~stays & later.code);
    value = larger;
  }
  using Watch = unsigned;
  __device__ __forceinline__ void watch(Watch& special) const {
    if constexpr (!kAlways) special = not_finite(value, special, T{});
  }
  static __device__ __forceinline__ bool is_special(Watch special) { return kAlways || (special & 0x7fff7fffu) != 0; }
  __device__ __forceinline__ T element(int k) const { return {static_cast<unsigned short>(value >> 16 * k)}; }
  __device__ __forceinline__ A at(int k) const { return widen(element(k)); }
  __device__ __forceinline__ int where(int k) const { return code >> 16 * k & 0xffff; }
};
#endif

}  // namespace dnnarray
