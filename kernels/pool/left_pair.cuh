// A row of what a Strip sees, with the two halves to the left of its vectors as a word: two strided loads of two bytes
// cost the first-level cache twice as many look-ups.
#pragma once

#include "pool/strip.cuh"

namespace dnnarray {

// Whether there are two such halves. (What neighbouring lanes lend is read otherwise.)
template <typename S>
constexpr bool kLeftPair = sizeof(typename S::T) == 2 && !Number<typename S::T>::kInteger && !S::kLast &&
                           S::kLeft == 2 && S::kWide % 2 == 0 && !S::kLends;

template <typename S>
__device__ __forceinline__ typename S::Row read_with_left_pair(const S& source, int h) {
  using T = typename S::T;
  const T* from = source.x + static_cast<long long>(h) * source.row;
  const T nothing = S::N::narrowed(S::nothing());
  typename S::Row r;
#pragma unroll
  for (int b = 0; b < S::kBody; ++b) {
    r.body[b].fill(nothing);
    if (source.inside(h, b * S::kWide)) r.body[b].read(from + b * S::kWide);
  }
  Packed<T, 2> left;
  left.fill(nothing);
  if (source.inside(h, -2)) left.read(from - 2);
#pragma unroll
  for (int i = 0; i < S::kHalo; ++i) {
    const int c = S::kSpan + i - 2;
    r.halo[i] = i < 2 ? left.at(i % 2) : under_way(source.inside(h, c) ? from[c] : nothing);
  }
  return r;
}

}  // namespace dnnarray
