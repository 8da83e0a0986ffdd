// Random numbers by index: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011). Number i of the stream of a 64-bit seed is word i % 4 of the block with counter i / 4, the same on every
// engine.
#pragma once

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/ptx/integer.cuh"

namespace dnnarray {

struct Words {
  unsigned at[4];
};

// The four numbers 4 `counter` to 4 `counter` + 3.
__device__ __forceinline__ Words philox(unsigned long long seed, unsigned long long counter) {
  unsigned a = static_cast<unsigned>(counter), b = static_cast<unsigned>(counter >> 32), c = 0, d = 0;
  unsigned k = static_cast<unsigned>(seed), m = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = mul_wide_u32(a, 0xD2511F53u), second = mul_wide_u32(c, 0xCD9E8D57u);
    a = static_cast<unsigned>(second >> 32) ^ b ^ k;
    c = static_cast<unsigned>(first >> 32) ^ d ^ m;
    b = static_cast<unsigned>(second);
    d = static_cast<unsigned>(first);
    k += 0x9E3779B9u;
    m += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// Numbers offset + e to offset + e + N - 1. Their place may pass 2^64: offset is divided before the sum. `e` is a
// multiple of N.
template <int N>
__device__ __forceinline__ void random_numbers(unsigned long long seed, unsigned long long offset, long long e,
                                               unsigned (&numbers)[N]) {
  const unsigned long long place = (offset & 3) + static_cast<unsigned long long>(e),
                           block = (offset >> 2) + (place >> 2);
  const unsigned skip =
      static_cast<unsigned>(N % 4 == 0 ? offset : place) & 3;  // how many words of the first block are not wanted
  constexpr int kBlocks = (N + 3) / 4;
  unsigned window[4 * kBlocks + 4];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const Words words = philox(seed, block + b);
#pragma unroll
    for (int w = 0; w < 4; ++w) window[4 * b + w] = words.at[w];
  }
#pragma unroll
  for (int j = 0; j < N; ++j) numbers[j] = window[j];
  if (skip == 0) return;
  Words words = {};
  if (skip + N > 4 * kBlocks) words = philox(seed, block + kBlocks);
#pragma unroll
  for (int w = 0; w < 4; ++w) window[4 * kBlocks + w] = words.at[w];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const unsigned low = skip & 1 ? window[j + 1] : window[j], high = skip & 1 ? window[j + 3] : window[j + 2];
    numbers[j] = skip & 2 ? high : low;
  }
}

// What dropout multiplies N elements from element `e` on with: `scale` where the number is at least `threshold`, else
// 0.
template <int N, typename A>
struct Keep {
  unsigned long long seed, offset;
  unsigned threshold;
  A scale;

  __device__ __forceinline__ void factors(long long e, A (&factor)[N]) const {
    unsigned numbers[N];
    random_numbers<N>(seed, offset, e, numbers);
#pragma unroll
    for (int j = 0; j < N; ++j) factor[j] = numbers[j] >= threshold ? scale : A(0);
  }
};

}  // namespace dnnarray
