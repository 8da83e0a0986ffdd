// What the tensor-core kernels of attention's gradients share: a warp has 16 rows (queries, or keys with kKeyRows) by
// kColumns scores, lane l the rows l / 4 and l / 4 + 8, and of each tile of eight columns those from l % 4 * 2 on.
#pragma once

#include "attention/rows.cuh"
#include "attention/slopes.cuh"
#include "dnnarray/ptx/convert.cuh"

namespace dnnarray {

// What is known of the queries of a block or panel, in shared memory: lse log2(e), where +infinity makes all weights 0,
// and delta.
struct Known {
  float *lse, *delta;

  template <int kThreads>
  __device__ __forceinline__ void fetch(const float* all_lse, const float* all_delta, long long i0, int count,
                                        const Sequence& sequence) const {
    for (int r = threadIdx.x; r < count; r += kThreads) {
      const bool live = i0 + r < sequence.q_end;
      lse[r] = live ? usable_lse(all_lse[i0 + r]) * kLog2e : infinity(0.0f);
      delta[r] = live ? all_delta[i0 + r] : 0.0f;
    }
  }
};

// The products of queries and keys become weights and those of grad_y and the values ds. `row` and `column` are this
// lane's first, here and in the whole sequence; `partial` says that some keys are hidden.
template <bool kKeyRows, bool kExtras, typename T, int kTiles>
__device__ __forceinline__ void evaluate(float (&s)[kTiles][4], float (&d)[kTiles][4], const Head<T>& head,
                                         const Sequence& sequence, const Known& known, int row, int column,
                                         long long whole_row, long long whole_column, bool partial, float unit,
                                         float keep_scale) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int of_row = (e >> 1) * 8, of_column = 8 * n + (e & 1), at = kKeyRows ? column + of_column : row + of_row;
      const long long r = whole_row + of_row, c = whole_column + of_column, i = kKeyRows ? c : r, j = kKeyRows ? r : c;
      float score = s[n][e] * unit, bend = 1, factor = keep_scale;
      if constexpr (kExtras) {
        score = head.score(s[n][e], sequence, i, j, bend) * kLog2e;
        if (head.threshold) {
          bool kept[1];
          head.template keep<1>(i, j, kept);
          factor = kept[0] ? keep_scale : 0.0f;
        }
      }
      const float p = partial && !sequence.sees(i, j) ? 0.0f : ex2_approx_ftz(score - known.lse[at]);
      s[n][e] = p * factor;
      d[n][e] = p * (d[n][e] * factor - known.delta[at]) * bend;
    }
}

// The same in two steps where nothing but the band changes scores: the weights, and then ds.
template <bool kKeyRows, int kTiles>
__device__ __forceinline__ void scores_to_weights(float (&s)[kTiles][4], const Sequence& sequence, const Known& known,
                                                  int row, int column, long long whole_row, long long whole_column,
                                                  bool partial, float unit) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      s[n][e] = ex2_approx_ftz(s[n][e] * unit - known.lse[kKeyRows ? column + 8 * n + (e & 1) : row + (e >> 1) * 8]);
  if (!partial) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const long long at = whole_row + 8 * r;
    const Span seen = kKeyRows ? queries_seeing(sequence, at, whole_column) : keys_seen(sequence, at, whole_column);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (!seen.holds(8 * n + e)) s[n][2 * r + e] = 0;
  }
}
template <bool kKeyRows, int kTiles>
__device__ __forceinline__ void slope(const float (&s)[kTiles][4], float (&d)[kTiles][4], const Known& known, int row,
                                      int column) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      d[n][e] = s[n][e] * (d[n][e] - known.delta[kKeyRows ? column + 8 * n + (e & 1) : row + (e >> 1) * 8]);
}

// Two weights of A.
__device__ __forceinline__ void widen_weights(float& low, float& high, unsigned pair, bfloat16_t) {
  widen_pair(low, high, pair, bfloat16_t());
}
__device__ __forceinline__ void widen_weights(float& low, float& high, unsigned pair, float16_t) {
  low = cvt_f32_f16_low(pair), high = cvt_f32_f16_high(pair);
}

// The same with the weights as they stand in A, rounded: their registers are free before the other product is there.
template <typename T, bool kKeyRows, int kTiles>
__device__ __forceinline__ void slope(const unsigned (&a)[kTiles / 2][4], float (&d)[kTiles][4], const Known& known,
                                      int row, int column) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float weight[2];
      widen_weights(weight[0], weight[1], a[n / 2][n % 2 * 2 + r], T());
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& of_d = d[n][2 * r + e];
        of_d = weight[e] * (of_d - known.delta[kKeyRows ? column + 8 * n + e : row + 8 * r]);
      }
    }
}

// This lane's part of 16 rows, times `factor`; rows from `end` on and features from `width` on are not written.
template <typename T, int kTiles>
__device__ __forceinline__ void put(T* first, long long step, const float (&total)[kTiles][4], long long row,
                                    long long end, long long width, float factor) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const long long at = row + lane / 4 + 8 * r;
    if (at >= end) continue;
    T* p = first + at * step + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const Vec<T, 2> pair = {{narrow<T>(total[n][2 * r] * factor), narrow<T>(total[n][2 * r + 1] * factor)}};
      if (8 * n < width) store(p + 8 * n, pair);
    }
  }
}

}  // namespace dnnarray
