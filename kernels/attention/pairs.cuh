// Pairs of features that turn: a vector of them as it lies in memory, and turned by an angle of its own each.
#pragma once

#include "dnnarray/core/vec.cuh"

namespace dnnarray {

// N pairs of features of a row, side by side (kInterleaved; kWide: moved as one vector), or the second ones `half`
// elements behind the first.
template <typename T, int N, bool kInterleaved, bool kWide>
struct Pairs {
  using A = arithmetic_t<T>;
  using Raw = Vec<T, 2 * N>;  // as the arrays lie in memory, until they are computed with
  static constexpr int kStep = kInterleaved ? 2 : 1,
                       kSecond = kInterleaved ? 1 : N;  // from pair to pair, and from first to second
  A first[N], second[N];

  __device__ __forceinline__ explicit Pairs(const Raw& raw) {
    A all[2 * N];
    widen_all(all, raw);
#pragma unroll
    for (int j = 0; j < N; ++j) first[j] = all[j * kStep], second[j] = all[j * kStep + kSecond];
  }

  static __device__ __forceinline__ Raw load_raw(const T* p, long long half) {
    if constexpr (kInterleaved && kWide) return load<T, 2 * N>(p);
    Raw raw;
    if constexpr (kInterleaved) {
#pragma unroll
      for (int j = 0; j < 2 * N; ++j) raw.at[j] = p[j];
    } else {
      const Vec<T, N> halves[2] = {load<T, N>(p), load<T, N>(p + half)};
      memcpy(&raw, halves, sizeof raw);
    }
    return raw;
  }

  static __device__ __forceinline__ void store_raw(T* p, long long half, const Raw& raw) {
    if constexpr (kInterleaved && kWide) {
      store(p, raw);
    } else if constexpr (kInterleaved) {
#pragma unroll
      for (int j = 0; j < 2 * N; ++j) p[j] = raw.at[j];
    } else {
      Vec<T, N> halves[2];
      memcpy(halves, &raw, sizeof raw);
      store(p, halves[0]);
      store(p + half, halves[1]);
    }
  }

  __device__ __forceinline__ Raw turned(const A (&cosine)[N], const A (&sine)[N]) const {
    A y[2 * N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      y[j * kStep] = first[j] * cosine[j] - second[j] * sine[j];
      y[j * kStep + kSecond] = second[j] * cosine[j] + first[j] * sine[j];
    }
    return narrow_all<T, 2 * N>(y);
  }
};

// N neighbours of a table, by loads of 16 bytes at the most.
template <typename C, typename A, int N>
__device__ __forceinline__ void load_table(const C* p, A (&values)[N]) {
  constexpr int kPart = N * sizeof(C) > 16 ? 16 / sizeof(C) : N;
#pragma unroll
  for (int i = 0; i < N; i += kPart) {
    const Vec<C, kPart> part = load<C, kPart>(p + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) values[i + j] = A(widen(part.at[j]));
  }
}

}  // namespace dnnarray
