// Vectors of up to 16 bytes, moved by one instruction. Streaming hints (ld.cs, st.cs) cost 5% on an H200; see
// docs/development/findings/activation/elementwise-launch.md.
#pragma once

#include "dnnarray/core/dtype.cuh"
#include "dnnarray/ptx/memory.cuh"

namespace dnnarray {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T at[N];
};

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}

// A vector as it comes, in words. The compiler keeps the elements of a half type in registers of 16 bits and takes a
// vector that was loaded under a predicate apart at once, waiting for it; words stay under way until they are widened.
template <typename T, int N>
struct Wordwise {
  static constexpr int kWords = (N * sizeof(T) + 3) / 4;
  unsigned at[kWords];
};

template <typename T, int N>
__device__ __forceinline__ Wordwise<T, N> load_wordwise(const T* p) {
  Wordwise<T, N> words;
  if constexpr (sizeof(T) * N < 4) {
    words.at[0] = *reinterpret_cast<const unsigned short*>(p);
  } else {
    const auto whole = *reinterpret_cast<const Vec<unsigned, Wordwise<T, N>::kWords>*>(p);
#pragma unroll
    for (int i = 0; i < Wordwise<T, N>::kWords; ++i) words.at[i] = whole.at[i];
  }
  return words;
}

// By one instruction, to global or shared memory: the compiler takes a structure apart and does not always put its
// stores together again.
template <typename T, int N>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& v) {
  if constexpr (sizeof v == 16) {
    unsigned w[4];
    memcpy(w, &v, sizeof v);
    st_v4(p, w);
  } else if constexpr (sizeof v == 8) {
    unsigned w[2];
    memcpy(w, &v, sizeof v);
    st_v2(p, w);
  } else {
    *reinterpret_cast<Vec<T, N>*>(p) = v;
  }
}

// N values in the type that they are computed in; half types are taken out of 32-bit words, which costs one instruction
// each.
__device__ __forceinline__ void widen_pair(float& low, float& high, unsigned pair, bfloat16_t) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ void widen_pair(float& low, float& high, unsigned pair, float16_t) {
  low = widen(float16_t{static_cast<unsigned short>(pair)});
  high = widen(float16_t{static_cast<unsigned short>(pair >> 16)});
}

template <typename T, int N>
__device__ __forceinline__ void widen_all(arithmetic_t<T> (&y)[N], const Vec<T, N>& x) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    unsigned pairs[N / 2];
    memcpy(pairs, &x, sizeof x);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) widen_pair(y[2 * j], y[2 * j + 1], pairs[j], T());
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = widen(x.at[j]);
  }
}

template <typename T, int N>
__device__ __forceinline__ void widen_all(arithmetic_t<T> (&y)[N], const Wordwise<T, N>& x) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int j = 0; j < N / 2; ++j) widen_pair(y[2 * j], y[2 * j + 1], x.at[j], T());
  } else {
    Vec<T, N> elements;
    memcpy(&elements, &x, sizeof elements);
    widen_all(y, elements);
  }
}

// N values rounded to T; half types by two, which one instruction does.
__device__ __forceinline__ unsigned narrow_pair(float low, float high, float16_t) { return cvt_f16x2_f32(low, high); }
__device__ __forceinline__ unsigned narrow_pair(float low, float high, bfloat16_t) { return cvt_bf16x2_f32(low, high); }

// The same of max(x, 0), NaN staying NaN, in the same one instruction.
__device__ __forceinline__ unsigned rectified_pair(float low, float high, float16_t) {
  return cvt_relu_f16x2_f32(low, high);
}
__device__ __forceinline__ unsigned rectified_pair(float low, float high, bfloat16_t) {
  return cvt_relu_bf16x2_f32(low, high);
}

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> narrow_all(const arithmetic_t<T> (&x)[N]) {
  Vec<T, N> y;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    unsigned pairs[N / 2];
#pragma unroll
    for (int j = 0; j < N / 2; ++j) pairs[j] = narrow_pair(x[2 * j], x[2 * j + 1], T());
    memcpy(&y, pairs, sizeof y);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) y.at[j] = narrow<T>(x[j]);
  }
  return y;
}

}  // namespace dnnarray
