// What all attention kernels share: which keys a query sees, what changes a score, and the packed or paged sequences.
// `Rule`, `Extra` and `Pages` are parts of the kernels' arguments, which the plans fill by the same names
// (dnnarray/_cuda/attention/arguments.py).
#pragma once

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/math.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/philox.cuh"

namespace dnnarray {

constexpr long long kFar = 1ll << 40;  // beyond any sequence, and no sum of two of them overflows

// Element i of an array of integers, held within kFar. `kind` is the bytes of one, plus 16 where they are unsigned.
__device__ __forceinline__ long long integer_at(const void* p, long long kind, long long i) {
  long long value;
  switch (kind) {
    case 1:
      value = static_cast<const signed char*>(p)[i];
      break;
    case 2:
      value = static_cast<const short*>(p)[i];
      break;
    case 4:
      value = static_cast<const int*>(p)[i];
      break;
    case 17:
      value = static_cast<const unsigned char*>(p)[i];
      break;
    case 18:
      value = static_cast<const unsigned short*>(p)[i];
      break;
    case 20:
      value = static_cast<const unsigned*>(p)[i];
      break;
    default:
      value = static_cast<const long long*>(p)[i];
  }
  if (kind == 24 && value < 0) return kFar;
  return value > kFar ? kFar : value < -kFar ? -kFar : value;
}

// A parameter stored as T, or as float beside a half type.
template <typename T>
__device__ __forceinline__ arithmetic_t<T> parameter_at(const void* p, long long wide, long long i) {
  if (wide) return arithmetic_t<T>(static_cast<const float*>(p)[i]);
  return widen(static_cast<const T*>(p)[i]);
}

// Distances in elements between neighbours along batch, heads, sequence and features.
struct Strides {
  long long batch, head, row, column;

  // The distance of row i of head h of batch item b from the first element.
  __device__ __forceinline__ long long at(long long b, long long h, long long i = 0) const {
    return b * batch + h * head + i * row;
  }
};

// How scores are made; pointers are null where nothing is given. `left` and `right` are -1 where unbounded.
struct Rule {
  double scale, softcap;
  long long left, right, upper_left;
  const void *offsets, *q_lengths, *kv_lengths;
  long long offsets_kind, offsets_step, q_kind, kv_kind;
  const void *slopes, *sinks;
  long long slopes_wide, slopes_step, sinks_wide;
  const void *q_bounds, *k_bounds;                         // of packed sequences
  long long q_bounds_kind, k_bounds_kind, q_rows, k_rows;  // rows of the packed arrays
  unsigned long long seed, place;                          // of dropout
  long long threshold;                                     // 0: nothing is dropped
  double keep_scale;
  long long heads, group, queries, keys;  // query heads, those that share a key head; the longest sequences
};

// Arrays that broadcast to all scores: strides along batch, heads, queries and keys, 0 where repeated.
struct Extra {
  const void* bias;
  Strides of_bias;
  const unsigned char* mask;
  Strides of_mask;
};

// What a call has of the options that most calls go without; the compiler leaves out what serves the others. kRagged:
// offsets, lengths or bounds of sequences. kChanged: softcap, ALiBi, bias or mask. kDropped: dropout.
template <bool kRagged, bool kChanged, bool kDropped>
struct Given {
  static constexpr bool kExtras = kChanged || kDropped;  // more than the scale and the band changes scores or weights

  static __device__ __forceinline__ Rule rule(Rule rule) {
    if (!kRagged) rule.offsets = rule.q_lengths = rule.kv_lengths = rule.q_bounds = rule.k_bounds = nullptr;
    if (!kChanged) rule.softcap = 0, rule.slopes = nullptr;
    if (!kDropped) rule.threshold = 0;
    return rule;
  }
  static __device__ __forceinline__ Extra extra(Extra extra) {
    if (!kChanged) extra.bias = nullptr, extra.mask = nullptr;
    return extra;
  }
};

// One sequence: where its rows begin in packed arrays, how long it is, and which keys its queries see. Nobody has
// looked at bounds and lengths before: they are held within the arrays.
struct Sequence {
  long long q_first, k_first, queries, keys, q_end, k_end, diagonal, left, right;

  __device__ __forceinline__ Sequence(const Rule& rule, long long b) : left(rule.left), right(rule.right) {
    q_first = k_first = 0;
    queries = q_end = rule.queries;
    keys = k_end = rule.keys;
    if (rule.q_bounds) {
      q_first = held(integer_at(rule.q_bounds, rule.q_bounds_kind, b), rule.q_rows);
      k_first = held(integer_at(rule.k_bounds, rule.k_bounds_kind, b), rule.k_rows);
      queries = q_end =
          held(held(integer_at(rule.q_bounds, rule.q_bounds_kind, b + 1), rule.q_rows) - q_first, rule.queries);
      keys = k_end = held(held(integer_at(rule.k_bounds, rule.k_bounds_kind, b + 1), rule.k_rows) - k_first, rule.keys);
    }
    if (rule.q_lengths) q_end = held(integer_at(rule.q_lengths, rule.q_kind, b), queries);
    if (rule.kv_lengths) k_end = held(integer_at(rule.kv_lengths, rule.kv_kind, b), keys);
    diagonal = rule.offsets      ? integer_at(rule.offsets, rule.offsets_kind, b * rule.offsets_step)
               : rule.upper_left ? 0
                                 : k_end - q_end;
  }

  static __device__ __forceinline__ long long held(long long length, long long most) {
    return length < 0 ? 0 : length < most ? length : most;
  }

  // The keys that query i sees; only for queries before q_end.
  __device__ __forceinline__ long long first(long long i) const {
    const long long at = i + diagonal - left;
    return left < 0 || at < 0 ? 0 : at;
  }
  __device__ __forceinline__ long long last(long long i) const {
    const long long at = i + diagonal + right;
    return right < 0 || at >= k_end ? k_end - 1 : at;
  }
  __device__ __forceinline__ bool sees(long long i, long long j) const {
    return i < q_end && j >= first(i) && j <= last(i);
  }

  // The keys from `begin` to `end` that any query of i0 to i1 - 1 may see, and the queries that may see any key of j0
  // to j1 - 1.
  __device__ __forceinline__ void keys_of(long long i0, long long i1, long long& begin, long long& end) const {
    i1 = i1 < q_end ? i1 : q_end;
    begin = end = 0;
    if (i0 >= i1) return;
    begin = first(i0);
    end = last(i1 - 1) + 1;
  }
  __device__ __forceinline__ void queries_of(long long j0, long long j1, long long& begin, long long& end) const {
    begin = 0;
    end = q_end;
    if (right >= 0 && j0 - diagonal - right > 0) begin = j0 - diagonal - right;
    if (left >= 0 && j1 - diagonal + left < end) end = j1 - diagonal + left;
    if (j0 >= k_end) end = begin;
  }
};

// Whether the bounds of packed sequence b lie within the arrays, do not fall, and are no farther apart than said. For
// the end of a kernel, which reads them once more: to keep the answer would take a register all the way.
__device__ __forceinline__ bool within(const void* bounds, long long kind, long long b, long long rows,
                                       long long longest) {
  const long long begin = integer_at(bounds, kind, b), end = integer_at(bounds, kind, b + 1);
  return begin >= 0 && begin <= end && end <= rows && end - begin <= longest;
}
__device__ __forceinline__ bool sound(const Rule& rule, long long b) {
  if (!rule.q_bounds) return true;
  return within(rule.q_bounds, rule.q_bounds_kind, b, rule.q_rows, rule.queries) &&
         within(rule.k_bounds, rule.k_bounds_kind, b, rule.k_rows, rule.keys);
}
// A factor of results: NaN where the bounds are not sound.
__device__ __forceinline__ float whole(const Rule& rule, long long b) {
  return sound(rule, b) ? 1.0f : quiet_nan(0.0f);
}

// A range of places counted from some base, both ends in it, cut to 32 bits.
struct Span {
  int low, high;

  __device__ __forceinline__ Span(long long from, long long to, long long base)
      : low(cut(from - base)), high(cut(to - base)) {}
  static __device__ __forceinline__ int cut(long long x) {
    return static_cast<int>(x<-(1 << 30) ? -(1 << 30) : x>(1 << 30) ? (1 << 30) : x);
  }
  __device__ __forceinline__ bool holds(int place) const { return place >= low && place <= high; }
};
// The keys that query i sees, and the queries that see key j.
__device__ __forceinline__ Span keys_seen(const Sequence& sequence, long long i, long long base) {
  return i < sequence.q_end ? Span(sequence.first(i), sequence.last(i), base) : Span(1, 0, 0);
}
__device__ __forceinline__ Span queries_seeing(const Sequence& sequence, long long j, long long base) {
  if (j >= sequence.k_end) return Span(1, 0, 0);
  const long long at = j - sequence.diagonal, before = at - sequence.right, after = at + sequence.left;
  return Span(sequence.right < 0 ? 0 : before,
              sequence.left < 0 || after >= sequence.q_end ? sequence.q_end - 1 : after, base);
}

// Scores of one head of one sequence.
template <typename T>
struct Head {
  using A = arithmetic_t<T>;
  A factor, softcap, slope;
  const T* bias;
  const unsigned char* mask;
  long long bias_row, bias_column, mask_row, mask_column;
  unsigned long long seed, drawn;  // `drawn` is the place of the random number of query 0, key 0
  unsigned threshold;
  long long keys;

  __device__ __forceinline__ Head(const Rule& rule, const Extra& extra, long long b, long long h) {
    factor = A(rule.softcap > 0 ? rule.scale / rule.softcap : rule.scale);
    softcap = A(rule.softcap);
    slope = rule.slopes ? parameter_at<T>(rule.slopes, rule.slopes_wide, b * rule.slopes_step + h) : A(0);
    bias = extra.bias ? static_cast<const T*>(extra.bias) + b * extra.of_bias.batch + h * extra.of_bias.head : nullptr;
    mask = extra.mask ? extra.mask + b * extra.of_mask.batch + h * extra.of_mask.head : nullptr;
    bias_row = extra.of_bias.row, bias_column = extra.of_bias.column, mask_row = extra.of_mask.row,
    mask_column = extra.of_mask.column;
    seed = rule.seed;
    drawn = rule.place + static_cast<unsigned long long>((b * rule.heads + h) * rule.queries) *
                             static_cast<unsigned long long>(rule.keys);
    threshold = static_cast<unsigned>(rule.threshold);
    keys = rule.keys;
  }

  // From the product of query i and key j; minus infinity where the key is not seen. `bend` is the derivative of the
  // cap.
  __device__ __forceinline__ A score(A product, const Sequence& sequence, long long i, long long j, A& bend) const {
    bend = 1;
    if (!sequence.sees(i, j)) return -infinity(A(0));
    A s = product * factor;
    if (softcap > 0) {
      const A t = math_t<T>::tanh(s);
      bend = 1 - t * t;
      s = softcap * t;
    }
    if (slope != 0) s -= slope * absolute(A(i + sequence.diagonal - j));
    if (bias) s += widen(bias[i * bias_row + j * bias_column]);
    if (mask && !mask[i * mask_row + j * mask_column]) s = -infinity(A(0));
    return s;
  }

  // Whether dropout leaves the weights of query i for N keys from j on.
  template <int N>
  __device__ __forceinline__ void keep(long long i, long long j, bool (&kept)[N]) const {
    unsigned numbers[N];
    random_numbers<N>(seed, drawn + static_cast<unsigned long long>(i) * keys + j, 0, numbers);
#pragma unroll
    for (int n = 0; n < N; ++n) kept[n] = numbers[n] >= threshold;
  }
};

// Keys and values whose rows lie in the blocks of a cache, of which there are `count`.
struct Pages {
  const void* table;
  long long kind, width, size, count;

  // The block of key j; -1 where the table names one that there is not.
  __device__ __forceinline__ long long page(long long b, long long j) const {
    const long long page = integer_at(table, kind, b * width + j / size);
    return page >= 0 && page < count ? page : -1;
  }
};

}  // namespace dnnarray
