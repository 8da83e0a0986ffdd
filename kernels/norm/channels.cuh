// What the norms over channels share: sums that simply add up, and the coefficients of a channel.
#pragma once

#include "dnnarray/core/overlap.cuh"
#include "dnnarray/core/vec.cuh"
#include "norm/statistics.cuh"

namespace dnnarray {

template <typename A, typename B>
constexpr bool is_same = false;
template <typename A>
constexpr bool is_same<A, A> = true;

// Two sums in double: of x and x^2 around a shift that all who add them up share (a value of the data itself, so that
// what cancels is no larger than what is left), or of g and g * (x - mean).
struct alignas(16) Shares {
  double plain, along;

  __device__ __forceinline__ void add(const Shares& other) { plain += other.plain, along += other.along; }
};

// What a thread summed around its first value, around the common shift instead.
template <typename A>
__device__ __forceinline__ Shares around(const Shifted<A>& own, double common, long long count) {
  const double n = double(count), distance = double(own.shift) - common, sum = double(own.sum);
  return count > 0 ? Shares{sum + n * distance, double(own.square) + distance * (2 * sum + n * distance)}
                   : Shares{0, 0};
}

// Every lane of kLanes neighbouring ones (or, with kStride, of those with the same lane % kStride) gets the sum.
template <int kLanes = kWarp, int kStride = 1>
__device__ __forceinline__ Shares warp_shares(Shares s) {
#pragma unroll
  for (int lane = kLanes / 2; lane >= kStride; lane /= 2)
    s.add({__shfl_xor_sync(kAllLanes, s.plain, lane), __shfl_xor_sync(kAllLanes, s.along, lane)});
  return s;
}

// One value of each thread; those with the same threadIdx.x % kSide get the sum of theirs, in a fixed order. kThreads
// and kSide are powers of two, kSide up to 32; `smem` holds kThreads / 32 * kSide values and may be used again at once.
template <int kSide, int kThreads>
__device__ __forceinline__ Shares block_shares(Shares s, Shares* smem) {
  s = warp_shares<kWarp, kSide>(s);
  if constexpr (kThreads > kWarp) {
    const int lane = threadIdx.x % kWarp, side = threadIdx.x % kSide;
    if (lane < kSide) smem[threadIdx.x / kWarp * kSide + lane] = s;
    __syncthreads();
    s = smem[side];
#pragma unroll
    for (int warp = 1; warp < kThreads / kWarp; ++warp) s.add(smem[warp * kSide + side]);
    __syncthreads();
  }
  return s;
}

// Each of kLanes neighbouring threads, up to a warp or the whole block, gets the sum of theirs.
template <int kLanes, int kThreads>
__device__ __forceinline__ Shares lane_shares(Shares s, Shares* smem) {
  if constexpr (kLanes <= kWarp) return warp_shares<kLanes>(s);
  static_assert(kLanes <= kWarp || kLanes == kThreads, "part of a warp, or the block");
  return block_shares<1, kThreads>(s, smem);
}

// What the last pass needs of a channel (of an image), in memory one after the other: z = (x - mean) * scale + shift.
template <typename A>
struct alignas(4 * sizeof(A) > 16 ? 16 : 4 * sizeof(A)) Affine {
  A mean, scale, shift, rstd;
};

// And its gradient: dx = rstd * (g * weight - average - slope * (x - mean)).
template <typename A>
struct alignas(4 * sizeof(A) > 16 ? 16 : 4 * sizeof(A)) Slope {
  A weight, average, slope, unused;
};

// Arrays of coefficients, four numbers to an instance: one instance after the other where a thread needs one at a time,
// one number after the other where it needs those of neighbouring channels.
template <typename A>
struct Table {
  A* data;
  long long number, instance;

  __device__ __forceinline__ Table(A* at, long long instances, bool last)
      : data(at), number(last ? instances : 1), instance(last ? 1 : 4) {}
  __device__ __forceinline__ A& at(int which, long long i) const { return data[which * number + i * instance]; }
};

// N neighbouring numbers, 16 bytes at a time.
template <int N, typename A>
__device__ __forceinline__ void read_all(A (&to)[N], const A* from) {
  constexpr int kPiece = N * sizeof(A) > 16 ? 16 / sizeof(A) : N;
#pragma unroll
  for (int start = 0; start < N; start += kPiece) {
    const auto piece = load<A, kPiece>(from + start);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) to[start + i] = piece.at[i];
  }
}

// N neighbours, which no kernel of the program has written, on their way from here on: an ordinary load may end up
// behind the wait for the kernel before, since neither compiler nor assembler knows what that waits for.
template <typename T, int N>
__device__ __forceinline__ Wordwise<T, N> load_at_once(const T* p) {
  if constexpr (sizeof(T) * N == 16) {
    Wordwise<T, N> words;
    ld_global_v4_in_place(words.at, p);
    return words;
  } else {
    return load_wordwise<T, N>(p);
  }
}

// How a statistic becomes known, and who else wants to know it. Null: what is not given or not asked for.
template <typename T>
struct Statistic {
  using A = arithmetic_t<T>;
  Parameter<T> given_mean, given_rstd, variance, running_mean, running_var;
  A *mean_of, *rstd_of;
  void *next_mean, *next_var;
  double count, share, momentum, eps;  // share is 1 / count

  struct Found {
    double mean;
    A rstd;

    // The coefficients of a channel; what rounding takes from the mean goes into the shift.
    __device__ __forceinline__ Affine<A> affine(A weight, A bias) const {
      const A near = A(mean), scale = rstd * weight;
      return {near, scale, bias - A(mean - double(near)) * scale, rstd};
    }
  };

  // From the sums around `origin`; `leads` says that this thread writes the results.
  __device__ __forceinline__ Found find(const Shares& sums, double origin, long long statistic, bool leads) const {
    const double distance = sums.plain * share, rest = sums.along - sums.plain * distance;
    const double spread = (rest < 0 ? 0 : rest) * share;
    const double mean = given_mean.data != nullptr ? double(given_mean.at(statistic, A(0))) : origin + distance;
    const double used = variance.data != nullptr ? double(variance.at(statistic, A(0))) : spread;
    const A rstd = given_rstd.data != nullptr ? given_rstd.at(statistic, A(0)) : A(1) / root_of(A(used + eps));
    if (leads) {
      if (mean_of != nullptr) mean_of[statistic] = A(mean);
      if (rstd_of != nullptr) rstd_of[statistic] = rstd;
      const double step = count > 0 ? momentum : 0.0;  // of nothing there is nothing to learn
      if (next_mean != nullptr) move_on(next_mean, running_mean, statistic, step, mean);
      if (next_var != nullptr)
        move_on(next_var, running_var, statistic, step, spread * (count / (count > 1 ? count - 1 : 1.0)));
    }
    return {mean, rstd};
  }

 private:
  __device__ __forceinline__ static void move_on(void* next, const Parameter<T>& running, long long statistic,
                                                 double step, double now) {
    const A old = running.at(statistic, A(0));
    put<T>(next, running.wide, statistic, step == 0 ? old : A((1 - step) * double(old) + step * now));
  }
};

}  // namespace dnnarray
