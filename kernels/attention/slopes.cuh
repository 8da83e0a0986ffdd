// The weights of a patch of scores and their gradients, computed again from the log-sum-exp of each row:
//   p = exp(s - lse),  dp = keep grad_y . v / (1 - rate),  ds = p (dp - delta),  delta = grad_y . y - grad_lse.
#pragma once

#include "attention/rule.cuh"

namespace dnnarray {

// A row that sees nothing has lse = -infinity; +infinity in its place makes all its weights 0.
template <typename A>
__device__ __forceinline__ A usable_lse(A lse) {
  if (lse == -infinity(A(0))) return infinity(A(0));
  return lse == infinity(A(0)) ? quiet_nan(A(0)) : lse;
}

// kPatch x kPatch scores of a thread. Rows are queries and columns keys, or the other way round (kKeyRows).
template <typename T, int kPatch, bool kKeyRows>
struct Slopes {
  using A = arithmetic_t<T>;
  using Patch = A[kPatch][kPatch];
  const Head<T>& head;
  const Sequence& sequence;
  const A *lse, *delta;  // of query 0
  A keep_scale;

  // The products of queries and keys become the weights that are left after dropout; those of grad_y and the values
  // become ds, and with kBent the gradients of the product q.k / scale.
  template <bool kWeightsOnly, bool kBent>
  __device__ __forceinline__ void evaluate(Patch& s, Patch& d, long long i, long long j) const {
#pragma unroll
    for (int line = 0; line < kPatch; ++line) {
      bool kept[kPatch];
      if (head.threshold) { head.template keep<kPatch>(i + line, j, kept); }
      const bool live = i + line < sequence.q_end;
      const A ground = live ? usable_lse(lse[i + line]) : infinity(A(0));
      const A mean = live && !kWeightsOnly ? delta[i + line] : A(0);
#pragma unroll
      for (int n = 0; n < kPatch; ++n) {
        A &w = kKeyRows ? s[n][line] : s[line][n], &g = kKeyRows ? d[n][line] : d[line][n];
        const A factor = !head.threshold || kept[n] ? keep_scale : A(0);
        const bool seen = sequence.sees(i + line, j + n);
        A bend;
        const A p = Precise::exp(head.score(w, sequence, i + line, j + n, bend) - ground);
        w = seen ? p * factor : A(0);
        if constexpr (!kWeightsOnly) g = seen ? p * (g * factor - mean) * (kBent ? bend : A(1)) : A(0);
      }
    }
  }
};

// Rows of one array of a head; null past the end.
template <typename T>
struct Source {
  const T* first;
  long long step, end;

  __device__ __forceinline__ const T* at(long long row) const {
    return first && row < end ? first + row * step : nullptr;
  }
};

// The queries, or the keys and values, of one head of batch item b in an array that begins at p.
template <typename T>
__device__ __forceinline__ Source<T> queries_at(const T* p, const Strides& strides, long long b, long long head,
                                                const Sequence& sequence) {
  return {p + strides.at(b, head, sequence.q_first), strides.row, sequence.q_end};
}
template <typename T>
__device__ __forceinline__ Source<T> keys_at(const T* p, const Strides& strides, long long b, long long head,
                                             const Sequence& sequence) {
  return {p + strides.at(b, head, sequence.k_first), strides.row, sequence.k_end};
}

}  // namespace dnnarray
