// Index arithmetic: divisions that take the short way where they can, and places under another order of the axes.
#pragma once

#include "dnnarray/core/division.cuh"
#include "dnnarray/core/dtype.cuh"

namespace dnnarray {

// i / n and i % n of non-negative numbers; 32 bits where both fit, which is several times cheaper.
struct Divided {
  long long quotient, remainder;
};
__device__ __forceinline__ Divided divide_index(long long i, long long n) {
  if (((i | n) >> 32) == 0) {
    const unsigned a = static_cast<unsigned>(i), b = static_cast<unsigned>(n), q = a / b;
    return {q, a - q * b};
  }
  const long long q = i / n;
  return {q, i - q * n};
}

// The same where the host has prepared what a Divisor takes; kLong: i may be too large for one.
template <bool kLong>
__device__ __forceinline__ Divided split_index(long long i, long long n, long long magic) {
  if constexpr (kLong) return divide_index(i, n);
  const Divisor by(n, magic);
  const unsigned a = static_cast<unsigned>(i), q = by.quotient(a);
  return {q, a - q * by.n};
}

// An array of up to five axes seen in one order and lying in another: extents from the second slowest axis on, strides
// of all five in elements.
struct Strided {
  long long n1, n2, n3, n4, s0, s1, s2, s3, s4;

  // Where the element lies that is number i with axis 4 running fastest.
  __device__ __forceinline__ long long at(long long i) const {
    const Divided a = divide_index(i, n4), b = divide_index(a.quotient, n3), c = divide_index(b.quotient, n2),
                  d = divide_index(c.quotient, n1);
    return d.quotient * s0 + d.remainder * s1 + c.remainder * s2 + b.remainder * s3 + a.remainder * s4;
  }
};

}  // namespace dnnarray
