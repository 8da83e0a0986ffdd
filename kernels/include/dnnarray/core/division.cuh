// Division of indices by a number that the host knew: a multiplication and a shift.
#pragma once

namespace dnnarray {

// For 0 <= i < 2^31 and 1 <= n < 2^31: i / n = (high half of i * magic + i) >> shift (Granlund and Montgomery, 1994);
// the host finds shift = ceil(log2(n)) and magic = 2^32 (2^shift - n) / n + 1.
struct Divisor {
  unsigned n, magic, shift;

  __device__ __forceinline__ Divisor(long long extent, long long packed)
      : n(static_cast<unsigned>(extent)),
        magic(static_cast<unsigned>(packed)),
        shift(static_cast<unsigned>(packed >> 32)) {}
  __device__ __forceinline__ unsigned quotient(unsigned i) const { return (__umulhi(i, magic) + i) >> shift; }
  __device__ __forceinline__ unsigned remainder(unsigned i) const { return i - quotient(i) * n; }
};

}  // namespace dnnarray
