// What a warp of the tensor-core kernels of attention holds of 16 queries, scores, sums and the result, and what is
// done to it in registers. Lane l has the rows l / 4 and l / 4 + 8, and of each tile of eight columns those from l % 4
// * 2 on.
#pragma once

#include "attention/rule.cuh"
#include "dnnarray/core/vec.cuh"

namespace dnnarray {

constexpr float kLog2e = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;

template <typename T, int kKeys, int kWidth>
struct RowState {
  static constexpr int kScoreTiles = kKeys / 8, kValueTiles = kWidth / 8;
  using Scores = float[kScoreTiles][4];
  Scores s;
  float y[kValueTiles][4];
  float top[2], sum[2];  // the sum is over this lane's columns until the end

  // Nothing seen yet but the sink, which is in the unit of the scores.
  __device__ __forceinline__ void start(float sink) {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) y[n][e] = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = sink;
      sum[r] = threadIdx.x % 4 == 0 && sink != -infinity(0.0f) ? 1 : 0;
    }
  }

  // Scores become weights, with `unit` folded into the power of two; `shrink` is what all that was summed so far is to
  // be multiplied by. Chains of dependent operations are cut into kChains: a warp has few others beside it.
  __device__ __forceinline__ void absorb(Scores& s, float unit, float (&shrink)[2]) {
    constexpr int kChains = kScoreTiles < 4 ? kScoreTiles : 4;
    float high[2][kChains], part[2][kChains] = {}, ground[2];
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float pair = fmaxf(s[n][2 * r], s[n][2 * r + 1]);
        high[r][n % kChains] = n < kChains ? pair : fmaxf(high[r][n % kChains], pair);
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float higher = top[r];
#pragma unroll
      for (int c = 0; c < kChains; ++c) higher = fmaxf(higher, high[r][c]);
      higher = fmaxf(higher, __shfl_xor_sync(kAllLanes, higher, 1));
      higher = fmaxf(higher, __shfl_xor_sync(kAllLanes, higher, 2));
      ground[r] = higher == -infinity(0.0f) ? 0.0f : higher * unit;
      shrink[r] = ex2_approx_ftz(top[r] * unit - ground[r]);
      top[r] = higher;
    }
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = ex2_approx_ftz(s[n][e] * unit - ground[e >> 1]);
        part[e >> 1][n % kChains] += s[n][e];
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] *= shrink[r];
#pragma unroll
      for (int c = 0; c < kChains; ++c) sum[r] += part[r][c];
    }
  }
  __device__ __forceinline__ void rescale(const float (&shrink)[2]) {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) y[n][e] *= shrink[e >> 1];
  }

  // `i` is this lane's first row, `j` its first key.
  __device__ __forceinline__ void hide(Scores& s, const Sequence& sequence, long long i, long long j) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Span seen = keys_seen(sequence, i + 8 * r, j);
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (!seen.holds(8 * n + e)) s[n][2 * r + e] = -infinity(0.0f);
    }
  }
  __device__ __forceinline__ void change(const Head<T>& head, const Sequence& sequence, long long i, long long j) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float bend;
        s[n][e] = head.score(s[n][e], sequence, i + (e >> 1) * 8, j + 8 * n + (e & 1), bend);
      }
  }
  __device__ __forceinline__ void drop(const Head<T>& head, long long i, long long j) {
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        bool kept[2];
        head.template keep<2>(i + 8 * r, j + 8 * n, kept);
#pragma unroll
        for (int e = 0; e < 2; ++e) s[n][2 * r + e] = kept[e] ? s[n][2 * r + e] : 0.0f;
      }
  }

  // The weights of 16 keys as A, rounded to the half type.
  template <typename M>
  __device__ __forceinline__ void weights(const Scores& s, int step, unsigned (&a)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float (&of)[4] = s[2 * step + half];
      a[2 * half] = M::pack(of[0], of[1]);
      a[2 * half + 1] = M::pack(of[2], of[3]);
    }
  }

  // Write y and, where given, lse; both point at query 0. What is not `whole` is NaN.
  template <typename O>
  __device__ __forceinline__ void finish(O* out, float* lse, long long step, long long i, const Sequence& sequence,
                                         long long width, float unit, float keep_scale, bool whole) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      if (!whole) total = quiet_nan(0.0f);
      const long long at = i + 8 * r;
      const bool live = at < sequence.q_end;
      const float scaled = live ? keep_scale / (total == 0 ? 1.0f : total) : 0.0f;
      if (at >= sequence.queries) continue;
      if (lse && lane % 4 == 0) lse[at] = live ? (top[r] * unit + lg2_approx_ftz(total)) * kLn2 : -infinity(0.0f);
      O* p = out + at * step + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        const Vec<O, 2> pair = {
            {narrow<O>(live ? y[n][2 * r] * scaled : 0.0f), narrow<O>(live ? y[n][2 * r + 1] * scaled : 0.0f)}};
        if (8 * n < width) store(p + 8 * n, pair);
      }
    }
  }
};

// The rows of keys or values of a head: in a sequence, or in the blocks of a cache. Null past the end, and for a block
// that there is not.
template <typename T, bool kPaged>
struct KeyRows {
  const T* first;
  long long step, of_page, end, sequence;
  Pages pages;
  mutable bool missing = false;

  __device__ __forceinline__ const T* at(long long j) const {
    if (j >= end) return nullptr;
    if constexpr (kPaged) {
      const long long page = pages.page(sequence, j);
      missing = missing || page < 0;
      return page < 0 ? nullptr : first + page * of_page + j % pages.size * step;
    }
    return first + j * step;
  }
  // Whether no thread of the block met a block of the cache that there is not; a barrier.
  __device__ __forceinline__ bool all_there() const {
    if constexpr (kPaged) return !__syncthreads_or(missing);
    __syncthreads();
    return true;
  }
};

// The rows of key head `head` for batch item b, in an array that begins at p.
template <typename T, bool kPaged>
__device__ __forceinline__ KeyRows<T, kPaged> key_rows(const T* p, const Strides& strides, long long b, long long head,
                                                       const Sequence& sequence, const Pages& pages) {
  const T* first = p + (kPaged ? strides.at(0, head) : strides.at(b, head, sequence.k_first));
  return {first, strides.row, strides.batch, sequence.k_end, b, pages};
}

}  // namespace dnnarray
