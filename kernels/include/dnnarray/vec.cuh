// Vectors of up to 16 bytes, moved by one instruction. Streaming hints (ld.cs, st.cs) cost 5% on an H200; see docs/measured.md.
#pragma once

#include "dnnarray/dtype.cuh"

namespace dnnarray {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T at[N];
};

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}

template <typename T, int N>
__device__ __forceinline__ void store(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

}  // namespace dnnarray
