// Vectors of wide elements, division with remainder, and strides of an array.
#pragma once

#include "dnnarray/core/larger.cuh"

namespace dnnarray {

// --- vectors whose entries are wider than those of x: in pieces of up to 16 bytes, the alignment that is known ---

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> load_wide(const T* p) {
  constexpr int kPiece = sizeof(T) * N <= 16 ? N : 16 / sizeof(T);
  Vec<T, N> v;
#pragma unroll
  for (int j = 0; j < N; j += kPiece) {
    const Vec<T, kPiece> piece = load<T, kPiece>(p + j);
#pragma unroll
    for (int k = 0; k < kPiece; ++k) v.at[j + k] = piece.at[k];
  }
  return v;
}

template <typename T, int N>
__device__ __forceinline__ void store_wide(T* p, const Vec<T, N>& v) {
  constexpr int kPiece = sizeof(T) * N <= 16 ? N : 16 / sizeof(T);
#pragma unroll
  for (int j = 0; j < N; j += kPiece) {
    Vec<T, kPiece> piece;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) piece.at[k] = v.at[j + k];
    store(p + j, piece);
  }
}

// --- a / b with remainder; 64 bits only where they are needed ---

struct Split {
  long long quotient;
  int rest;
};
__device__ __forceinline__ Split split(long long a, int b) {
  if (b == 1) return {a, 0};
  if (a >> 32 == 0) {
    const unsigned low = static_cast<unsigned>(a), q = low / static_cast<unsigned>(b);
    return {q, static_cast<int>(low - q * static_cast<unsigned>(b))};
  }
  // By words and bits, in a few registers: the compiler's 64-bit division is a call, around which registers are saved.
  const unsigned divisor = static_cast<unsigned>(b), high = static_cast<unsigned>(a >> 32), first = high / divisor;
  unsigned rest = high - first * divisor, second = 0;
#pragma unroll 1
  for (int bit = 31; bit >= 0; --bit) {
    rest = rest << 1 | (static_cast<unsigned>(a) >> bit & 1);
    const bool fits = rest >= divisor;
    rest -= fits ? divisor : 0;
    second |= static_cast<unsigned>(fits) << bit;
  }
  return {static_cast<long long>(first) << 32 | second, static_cast<int>(rest)};
}

// a / b for a of 0 or more; the usual divisors without a division.
__device__ __forceinline__ int quotient(int a, int b) { return b == 1 ? a : b == 2 ? a >> 1 : a / b; }

// Two numbers of 31 bits in one launch argument.
__device__ __forceinline__ int high(long long pair) { return static_cast<int>(pair >> 32); }
__device__ __forceinline__ int low(long long pair) { return static_cast<int>(pair); }

// Steps in memory, in elements, along batch, channel and the three spatial axes.
struct Strides {
  long long n, c, d, h, w;
};

}  // namespace dnnarray
