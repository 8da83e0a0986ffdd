// Permuted copies: elements by their size alone, and axes that indices are split into.
#pragma once

#include "dnnarray/core/vec.cuh"
#include "dnnarray/core/strides.cuh"

namespace dnnarray {

// Something of so many bytes.
template <int kBytes>
struct Unit {
  using type = Vec<unsigned, 4>;
};
template <>
struct Unit<8> {
  using type = unsigned long long;
};
template <>
struct Unit<4> {
  using type = unsigned;
};
template <>
struct Unit<2> {
  using type = unsigned short;
};
template <>
struct Unit<1> {
  using type = unsigned char;
};

// Numbers of elements; kShort: all below 2^31.
template <bool kShort>
struct Count {
  using type = unsigned;
};
template <>
struct Count<false> {
  using type = long long;
};

// An axis: its extent n, and elements of x from one to the next. It comes as two words, so that all a launch is told
//          lies in few lines of the
// constant memory, each of which is a miss: n and ceil(2^(31 + s) / n) above it, step * 32 + s - 1, with the s for
// which 2^s >= n.
template <bool kShort>
struct Walk {
  using I = typename Count<kShort>::type;
  unsigned n, magic, shift;
  I step;

  __device__ __forceinline__ Walk(unsigned long long numbers, unsigned long long steps)
      : n(static_cast<unsigned>(numbers)),
        magic(static_cast<unsigned>(numbers >> 32)),
        shift(static_cast<unsigned>(steps) & 31),
        step(static_cast<I>(steps >> 5)) {}
  // i % n; i becomes i / n.
  __device__ __forceinline__ unsigned split_off(I& i) const {
    const I whole = i;
    i = kShort ? __umulhi(static_cast<unsigned>(whole), magic) >> shift : split(whole, static_cast<int>(n)).quotient;
    return static_cast<unsigned>(whole - i * n);
  }
};

}  // namespace dnnarray
