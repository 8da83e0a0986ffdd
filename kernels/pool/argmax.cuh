// Elements of windows as integers that say which comes before the other: the larger value, then the earlier place; of
// NaN, which are above all, the later place. So the maximum of integers is a window's maximum and its place at once,
// whatever the order in which it is taken.
#pragma once

#include "dnnarray/core/larger.cuh"
#include "dnnarray/ptx/halves.cuh"
#include "dnnarray/ptx/memory.cuh"
#include "dnnarray/mma/warp.cuh"

namespace dnnarray {

// --- values: by words of two halves or of a float, integers in the order of the values; -0 counts as 0, every NaN is
// the same ---

constexpr int kLeast = static_cast<int>(0x80000000u);  // below every value
template <typename T>
constexpr unsigned kLeastWord = 0x80008000u;  // each of its halves
template <>
constexpr unsigned kLeastWord<float> = 0x80000000u;

__device__ __forceinline__ unsigned as_one_zero(unsigned pair, float16_t) { return fma_f16x2(pair, 0x3c003c00u, 0u); }
__device__ __forceinline__ unsigned as_one_zero(unsigned pair, bfloat16_t) { return fma_bf16x2(pair, 0x3f803f80u, 0u); }
template <typename T>
__device__ __forceinline__ unsigned ordered(unsigned pair, T) {
  const unsigned y = as_one_zero(pair, T{});
  return y ^ (signs_of_halves(y) & 0x7fff7fffu);
}
__device__ __forceinline__ unsigned ordered(unsigned word, float) {
  const int y = __float_as_int(__uint_as_float(word) + 0.0f);
  return y ^ (y >> 31 & 0x7fffffff);
}
// What is not zero, but for the signs, once a word that is not finite has been seen.
__device__ __forceinline__ unsigned not_finite(unsigned word, unsigned so_far, float) {
  return __float_as_uint(fmaf(__uint_as_float(word), 0.0f, __uint_as_float(so_far)));
}

// --- an element: its value and its place, a number of 16 bits that is larger for what comes first ---

// The place is `most` - i for column i, and the row's. Ranks of floats get the latter by `stand`, once the best of the
// row is known.
template <typename T>
struct Rank {
  int bits;  // the value, then the place; that of a NaN with its bits turned

  Rank() = default;
  __device__ __forceinline__ explicit Rank(int all) : bits(all) {}
  // The element in a part of a word. Of the places of three columns, the low bytes are in one word with the high byte
  // of all, which are the row's.
  __device__ __forceinline__ Rank(unsigned word, int part, unsigned columns, int which, unsigned row) {
    bits = static_cast<int>(
        __byte_perm(word, __byte_perm(row, 0, 0x1000) + columns, (part ? 0x3270 : 0x1070) | 4 + which));
  }
  __device__ __forceinline__ void stand(int) {}
  __device__ __forceinline__ unsigned where() const { return bits & 0xffff; }
  __device__ __forceinline__ void turn_if_nan(int) { bits ^= bits >= 0x7fff0000 ? 0xffff : 0; }
  __device__ __forceinline__ void drop() { bits = kLeast; }
  __device__ __forceinline__ Rank before(Rank later) const { return Rank(max(bits, later.bits)); }
};
template <>
struct Rank<float> {
  int value, place;  // values of NaN are different numbers

  Rank() = default;
  __device__ __forceinline__ Rank(int x, int at) : value(x), place(at) {}
  __device__ __forceinline__ Rank(unsigned word, int, unsigned columns, int which, unsigned)
      : value(static_cast<int>(word)), place(static_cast<int>(columns >> 8 * which & 0xff)) {}
  __device__ __forceinline__ void stand(int row) { place += row; }
  __device__ __forceinline__ unsigned where() const { return place; }
  __device__ __forceinline__ void turn_if_nan(int row) {
    value = value > 0x7f800000 ? 0x7fffffff - (row + place) : value;
  }
  __device__ __forceinline__ void drop() { value = kLeast; }
  __device__ __forceinline__ Rank before(Rank later) const {
    const bool stays = value >= later.value;
    return Rank(max(value, later.value), stays ? place : later.place);
  }
};

}  // namespace dnnarray
