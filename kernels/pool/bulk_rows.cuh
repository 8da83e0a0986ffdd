// A row of x in the gradient of maxima by long runs of rows (argmax_gradient_bulk.cu): what a thread sees of it, the
// largest of each of its windows there, and what the row gets of their gradients.
#pragma once

#include "dnnarray/ptx/extremes.cuh"
#include "dnnarray/ptx/halves.cuh"
#include "pool/bulk_tiles.cuh"

namespace dnnarray {

// How words hold what is seen of a row.
struct Cell {
  int word, part;
};
__device__ constexpr Cell cell_of(int i) {
  const int c = i - kMargin, in = c < 0 ? kLeft * kPart + c : c < kColumns ? c : c - kColumns;
  return {in / kPart + (c < 0 ? 0 : c < kColumns ? kLeft : kLeft + kBody), in % kPart};
}
// The words of the neighbours' columns, or `nothing`.
__device__ __forceinline__ void look_beside(unsigned (&words)[kWords], const Place& place, unsigned nothing) {
#pragma unroll
  for (int i = 0; i < kLeft; ++i) words[i] = place.from_left(words[kBody + i], nothing);
#pragma unroll
  for (int i = 0; i < kRight; ++i) words[kLeft + kBody + i] = place.from_right(words[kLeft + i], nothing);
}
__device__ __forceinline__ bool is_special(unsigned special) {
  return (special & (kHalves ? 0x7fff7fffu : 0x7fffffffu)) != 0;
}

// Of two pairs of halves, the larger of each; what is NaN is smaller than all else.
__device__ __forceinline__ unsigned larger_number(unsigned a, unsigned b, float16_t) { return max_f16x2(a, b); }
__device__ __forceinline__ unsigned larger_number(unsigned a, unsigned b, bfloat16_t) { return max_bf16x2(a, b); }

// A sum; whether something was added yet is known as the kernel is compiled.
struct Total {
  float value;
  bool begun;

  __device__ __forceinline__ void add(float gift) { value = begun ? value + gift : gift, begun = true; }
};

// The gifts of two windows, or of two rows of windows; what is given is gone.
struct Gifts {
  float a, b;

  __device__ __forceinline__ static void give(float& gift, bool here, Total& to) {
    to.value = to.begun ? (here ? to.value + gift : to.value) : here ? gift : 0.0f;
    to.begun = true, gift = here ? 0.0f : gift;
  }
  // The same by one comparison of two halves.
  template <typename Half>
  __device__ __forceinline__ void give(unsigned most, unsigned here, Total& to_a, Total& to_b, Half half) {
    move_where_equal(most, here, a, b, to_a.value, to_b.value, to_a.begun, to_b.begun, half);
    to_a.begun = to_b.begun = true;
  }
};

// A row of x as a thread sees it, each element an integer in the order of values; of NaN each later one is larger.
struct ExactRow {
  static constexpr bool kExact = true;
  int values[kSeen], best[kOwn];  // the largest of each window
  Total share[kOwn];              // of the windows' gradients, what the row gets

  __device__ __forceinline__ static int value(const unsigned (&words)[kWords], int i) {
    const Cell cell = cell_of(i);
    const unsigned word = words[cell.word];
    return static_cast<int>(!kHalves ? word : cell.part ? word & 0xffff0000u : word << 16);
  }
  __device__ __forceinline__ void turn(int row, bool there) {
    constexpr int kNan = kHalves ? 0x7fff0000 : 0x7f800001;
#pragma unroll
    for (int i = 0; i < kSeen; ++i) {
      if (values[i] >= kNan) values[i] = kNan + row * kSeen + i;
      if (!there) values[i] = kLeast;
    }
  }
  // What is special is told row by row here.
  __device__ __forceinline__ void open(const unsigned (&raw)[kBody], const Place& place, int row, bool there,
                                       unsigned&) {
    unsigned special = 0, words[kWords];
#pragma unroll
    for (int i = 0; i < kBody; ++i) {
      words[kLeft + i] = ordered(raw[i], T{});
      special = not_finite(raw[i], special, T{});
    }
    look_beside(words, place, kLeastWord<T>);
#pragma unroll
    for (int i = 0; i < kSeen; ++i) values[i] = value(words, i);
    if (__any_sync(~0u, !there || is_special(special))) turn(row, there);
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      best[b] = values[b * kStrideW];
#pragma unroll
      for (int s = 1; s < kWindowW; ++s) best[b] = max(best[b], values[b * kStrideW + s]);
    }
  }

  // The largest of the windows 2 k and 2 k + 1, over all rows or in this one, and gifts of theirs.
  struct Most {
    int of[2];
  };
  __device__ __forceinline__ Most most(int k) const { return {{best[2 * k], best[2 * k + 1]}}; }
  __device__ __forceinline__ Most most(const Most& before, int k) const {
    return {{max(before.of[0], best[2 * k]), max(before.of[1], best[2 * k + 1])}};
  }
  __device__ __forceinline__ void give_row(Gifts& gifts, const Most& most, int k) {
    give(gifts, most, best[2 * k], best[2 * k + 1], share[2 * k], share[2 * k + 1]);
  }
  __device__ __forceinline__ void give_column(Gifts& gifts, int k, int i, Total& to_a, Total& to_b) const {
    give(gifts, most(k), values[i], values[i + kStrideW], to_a, to_b);
  }
  static __device__ __forceinline__ void give(Gifts& gifts, const Most& most, int a, int b, Total& to_a, Total& to_b) {
    Gifts::give(gifts.a, most.of[0] == a, to_a);
    Gifts::give(gifts.b, most.of[1] == b, to_b);
  }
};

// The same of half types, two windows at once, where all is finite: what does not exist is NaN, which is neither larger
// than nor equal to anything.
template <typename Half>
struct PairedRow {
  static constexpr bool kExact = false;
  unsigned pairs[kSeen - kStrideW], best[kOwn / 2];  // elements i and i + kStrideW
  Total share[kOwn];

  static __device__ __forceinline__ unsigned pair(const unsigned (&words)[kWords], int i) {
    const Cell a = cell_of(i), b = cell_of(i + kStrideW);
    if (a.word == b.word) return words[a.word];
    return __byte_perm(words[a.word], words[b.word], (a.part ? 0x32 : 0x10) | (b.part ? 0x7600 : 0x5400));
  }
  __device__ __forceinline__ void open(const unsigned (&raw)[kBody], const Place& place, int, bool there,
                                       unsigned& special) {
    unsigned words[kWords];
#pragma unroll
    for (int i = 0; i < kBody; ++i) words[kLeft + i] = raw[i];
    if (there) {
#pragma unroll
      for (int i = 0; i < kBody; ++i) special = not_finite(raw[i], special, T{});
    }
    look_beside(words, place, kNothing);
#pragma unroll
    for (int i = 0; i < kSeen - kStrideW; ++i) pairs[i] = pair(words, i);
#pragma unroll
    for (int k = 0; k < kOwn / 2; ++k) {
      best[k] = pairs[2 * k * kStrideW];
#pragma unroll
      for (int s = 1; s < kWindowW; ++s) best[k] = larger_number(best[k], pairs[2 * k * kStrideW + s], Half{});
    }
  }

  using Most = unsigned;
  __device__ __forceinline__ Most most(int k) const { return best[k]; }
  __device__ __forceinline__ Most most(Most before, int k) const { return larger_number(before, best[k], Half{}); }
  __device__ __forceinline__ void give_row(Gifts& gifts, Most most, int k) {
    gifts.give(most, best[k], share[2 * k], share[2 * k + 1], Half{});
  }
  __device__ __forceinline__ void give_column(Gifts& gifts, int k, int i, Total& to_a, Total& to_b) const {
    gifts.give(best[k], pairs[i], to_a, to_b, Half{});
  }
};

}  // namespace dnnarray
