// The target of a row of scores: a label with its class weight and smoothing, or probabilities. The loss against it,
// and its gradient.
#pragma once

#include "loss/scores.cuh"
#include "dnnarray/ptx/opaque.cuh"

namespace dnnarray {

// What the target gives to each class of a row besides what the label gets; `q` holds the row's probabilities, `step`
// apart.
template <typename T, bool kProbabilities>
struct Shares {
  using A = arithmetic_t<T>;
  const T *q, *weight;
  long long step;
  A smoothing, spread;

  __device__ __forceinline__ A weight_of(long long c) const { return weight ? widen(weight[c]) : A(1); }
  __device__ __forceinline__ A of(long long c) const {
    return (kProbabilities ? smoothed(widen(q[c * step]), smoothing, spread) : A(1)) * weight_of(c);
  }
};

// `own` is the weight of the label's class and `score` the score there.
template <bool kSmoothing, typename T, bool kProbabilities, typename A = arithmetic_t<T>>
__device__ __forceinline__ A row_loss(const Scores<A>& found, A log_sum, const Label& label, A own, A score,
                                      const Shares<T, kProbabilities>& shares) {
  if (kProbabilities) return share_loss(found, log_sum);
  if (!label.kept) return A(0);
  if (!label.valid) return quiet_nan(A(0));
  const A loss = own * (log_sum - (score - finite_base(found.peak)));
  return kSmoothing ? loss * (A(1) - shares.smoothing) + share_loss(found, log_sum) * shares.spread : loss;
}

// Of a row: dz = both * exp(z - base) - scale * share, less `hard` at the label; dq = target * w * (z - base -
//           log_sum).
template <typename A>
struct Factors {
  A base, both, scale, hard, target, log_sum;
  long long label;
};

// `g` is the gradient of the row's loss.
template <bool kSmoothing, typename T, bool kProbabilities, typename A = arithmetic_t<T>>
__device__ __forceinline__ Factors<A> factors(const Scores<A>& found, const Label& label, A own, A g,
                                              const Shares<T, kProbabilities>& shares) {
  Factors<A> f{finite_base(found.peak),        g * found.share / found.sum, g, A(0),
               -g * (A(1) - shares.smoothing), log_of(found.sum),           -1};
  if constexpr (!kProbabilities) {
    f.hard = own * g * (A(1) - shares.smoothing);
    f.scale = g * shares.spread;
    f.both = (kSmoothing ? f.hard + f.scale * found.share : f.hard) / found.sum;
    f.label = label.index;
    if (!label.kept) f.hard = f.scale = f.both = A(0);
  }
  return f;
}

// The vectors of a row whose classes lie beside each other, at multiples of their size, and up to kVector - 1 single
// classes on either side.
template <int kVector, bool kRagged>
struct RowVectors {
  long long count, classes;
  int before;

  __device__ __forceinline__ RowVectors(long long start, long long length) : classes(length), before(0) {
    if (kRagged) before = static_cast<int>((kVector - start % kVector) % kVector);
    if (kRagged && before > length) before = static_cast<int>(length);
    count = (length - before) / kVector;
  }
  // How many fall to each of `lanes` threads that take turns, and the class at which the first of them begins.
  __device__ __forceinline__ int of(int lane, int lanes) const {
    return lane < count ? static_cast<int>((count - lane + lanes - 1) / lanes) : 0;
  }
  __device__ __forceinline__ long long first(int lane) const { return before + static_cast<long long>(lane) * kVector; }
  // The class that thread number `lane` of no fewer than 2 (kVector - 1) has to itself; -1 for none.
  __device__ __forceinline__ long long edge(int lane) const {
    const long long c = lane < before ? lane : lane + count * kVector;
    return kRagged && c < classes ? c : -1;
  }
};

// So many elements further on in an array; null where there is none, of one that may be null.
template <bool kMayBeNull, typename T>
__device__ __forceinline__ T* further(T* array, long long steps) {
  return !kMayBeNull || array ? array + steps : nullptr;
}

// What `Rows` of scores are to kernels: takes vectors and single classes into what is found of a row, and writes their
// gradients.
template <typename T, bool kProbabilities, bool kSmoothing>
struct RowKernel {
  using A = arithmetic_t<T>;
  static constexpr bool kShares = kProbabilities || kSmoothing;

  // Vectors `step` classes apart, the first at class c, `count` of them; those behind hold -inf.
  template <int kCount, int kVector>
  static __device__ __forceinline__ void take(Scores<A>& found, const Vec<T, kVector> (&part)[kCount],
                                              const Shares<T, kProbabilities>& shares, long long c, int step,
                                              int count) {
    found.raise(larger(found.peak, peak_of(part)));
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      A values[kVector];
      widen_all<T>(values, part[u]);
      found.add(values);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        if (kShares && u < count) found.add_share(values[v], shares.of(c + u * step + v));
      }
    }
  }
  static __device__ __forceinline__ void take(Scores<A>& found, A z, const Shares<T, kProbabilities>& shares,
                                              long long c) {
    found.raise(larger(found.peak, z));
    found.add(z);
    if (kShares) found.add_share(z, shares.of(c));
  }

  // The gradients of a vector of scores at class c of a row that begins at dz and dq; beside probabilities, one that is
  // null is not wanted.
  template <int kVector>
  static __device__ __forceinline__ void put(const Vec<T, kVector>& part, const Factors<A>& f,
                                             const Shares<T, kProbabilities>& shares, T* dz, T* dq, long long c) {
    A z[kVector], d[kVector];
    widen_all<T>(z, part);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      z[v] -= f.base;
      d[v] = f.both * quick_exp(z[v]);
      if (kShares) d[v] -= f.scale * shares.of(c + v);
    }
    const unsigned long long place = static_cast<unsigned long long>(f.label - c);
    if (!kProbabilities && place < kVector) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) d[v] -= v == static_cast<int>(place) ? f.hard : A(0);
    }
    if (!kProbabilities || dz) store(dz + c, narrow_all<T>(d));
    if (kProbabilities && dq) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) z[v] = f.target * shares.weight_of(c + v) * (z[v] - f.log_sum);
      store(dq + c, narrow_all<T>(z));
    }
  }
};

// Makes the compiler unpack half types anew where they are used again, rather than hold them as floats, in twice the
// registers.
template <typename T, int kVector>
__device__ __forceinline__ void forget_unpacked(Vec<T, kVector>& part) {
  if constexpr (sizeof(T) == 2 && kVector % 2 == 0) {
    unsigned pairs[kVector / 2];
    memcpy(pairs, &part, sizeof part);
#pragma unroll
    for (int j = 0; j < kVector / 2; ++j) opaque(pairs[j]);
    memcpy(&part, pairs, sizeof part);
  }
}

// A vector from memory, or -inf where there is none. Half types by words: filled one by one, each element would be
// moved by itself, and loads in a row would wait for each other.
template <int kVector, typename T>
__device__ __forceinline__ Vec<T, kVector> load_or_lowest(const T* from, bool there) {
  constexpr int kWords = sizeof(T) == 2 && kVector % 2 == 0 ? kVector / 2 : 0;
  Vec<T, kVector> part;
  if constexpr (kWords > 0) {
    const T low = narrow<T>(-infinity(0.0f));
    Vec<unsigned, kWords> words;
#pragma unroll
    for (int j = 0; j < kWords; ++j) words.at[j] = low.bits * 0x10001u;
    if (there) words = load<unsigned, kWords>(reinterpret_cast<const unsigned*>(from));
    memcpy(&part, &words, sizeof part);
  } else {
#pragma unroll
    for (int v = 0; v < kVector; ++v) part.at[v] = narrow<T>(-infinity(arithmetic_t<T>(0)));
    if (there) part = load<T, kVector>(from);
  }
  return part;
}

// Vectors `step` elements apart, the first `count` of which are there: all are asked for before the first is looked at.
template <int kCount, typename T, int kVector>
__device__ __forceinline__ void fetch(Vec<T, kVector> (&part)[kCount], const T* from, int count, long long step) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    part[u] = load_or_lowest<kVector>(from, u < count);
    from += step;
  }
}

// Classes one below the other, from c on: each vector of `part` holds a class of kVector rows. Those behind the last of
// `count` hold -inf. visit(u, v, z) sees every score.
template <bool kShares, int kCount, typename T, int kVector, bool kProbabilities, typename Visit>
__device__ __forceinline__ void take_columns(Scores<arithmetic_t<T>> (&found)[kVector],
                                             const Vec<T, kVector> (&part)[kCount],
                                             const Shares<T, kProbabilities> (&shares)[kVector], long long c, int count,
                                             Visit visit) {
  using A = arithmetic_t<T>;
  A peaks[kVector];
  peaks_of(peaks, part);
#pragma unroll
  for (int v = 0; v < kVector; ++v) {
    const A to = larger(found[v].peak, peaks[v]);
    if constexpr (kShares) {
      found[v].raise(to);
    } else {
      found[v].lift(to);
    }
  }
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    A z[kVector];
    widen_all<T>(z, part[u]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      visit(u, v, z[v]);
      found[v].add(z[v]);
      if (kShares && u < count) found[v].add_share(z[v], shares[v].of(c + u));
    }
  }
}

}  // namespace dnnarray
