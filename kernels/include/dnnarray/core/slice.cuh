// Vectors of 16 bytes that stay on the chip as they came from memory, and their elements.
#pragma once

#include "dnnarray/core/cluster.cuh"

namespace dnnarray {

using Words = Vec<unsigned, 4>;  // 16 bytes

// The lower and the upper half of a word, widened; one operation each.
__device__ __forceinline__ float widen_low(unsigned pair, bfloat16_t) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float widen_high(unsigned pair, bfloat16_t) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float widen_low(unsigned pair, float16_t) {
  return widen(float16_t{static_cast<unsigned short>(pair)});
}
__device__ __forceinline__ float widen_high(unsigned pair, float16_t) {
  return widen(float16_t{static_cast<unsigned short>(pair >> 16)});
}

// The element number j of a vector.
template <typename T>
__device__ __forceinline__ float element(const Words& words, int j) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(words.at[j]);
  } else {
    return j % 2 == 0 ? widen_low(words.at[j / 2], T()) : widen_high(words.at[j / 2], T());
  }
}

template <typename T>
__device__ __forceinline__ Words words_of(const float (&values)[16 / sizeof(T)]) {
  Words words;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if constexpr (sizeof(T) == 4) {
      words.at[j] = __float_as_uint(values[j]);
    } else {
      words.at[j] = narrow_pair(values[2 * j], values[2 * j + 1], T());
    }
  }
  return words;
}

template <typename T>
__device__ __forceinline__ Words load_words(const T* from) {
  return load<unsigned, 4>(reinterpret_cast<const unsigned*>(from));
}
template <typename T>
__device__ __forceinline__ void store_words(T* to, const Words& words) {
  store(reinterpret_cast<unsigned*>(to), words);
}

// Shared memory, read anew each time: the compiler would keep what it has read before, at the price of registers.
__device__ __forceinline__ Words load_again(const Words* from) {
  Words to;
  ld_volatile_shared_v4(to.at, shared_address(from));
  return to;
}

}  // namespace dnnarray
