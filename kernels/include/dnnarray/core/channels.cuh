// One parameter per channel of an array that is outer x channels x inner in memory: reading it beside the elements, and
// summing terms over everything but the channel.
//
// The sums are made in two stages of fixed order, so that they have the same bits at every run: each block writes one
// partial sum per channel to `partial` (channels x splits), and a second kernel adds those up.
#pragma once

#include "dnnarray/core/index.cuh"
#include "dnnarray/core/reduce.cuh"
#include "dnnarray/core/vec.cuh"

namespace dnnarray {

// How the channel runs along a vector of elements.
enum Channel {
  kUniform,  // all elements of a vector are of one channel: inner is a multiple of its length, or there is one channel
  kContiguous,     // inner is 1 and the number of channels a multiple of the vector's length
  kWalking,        // anything else
  kLongIndex = 4,  // added to one of these: there are 2^31 elements or more
};

// The extents of an array and what divides its indices by them (a Divisor, where they are not long).
struct ChannelView {
  long long channels, by_channels, inner, by_inner;
};

// The parameters of N elements from element i on. Without a branch for long indices: behind one the compiler would put
// what uses elements that were loaded before in front of this load, which then waits for them.
template <int N, int kMode, typename T, typename A>
__device__ __forceinline__ void load_parameters(const T* p, long long i, const ChannelView& view, A (&parameter)[N]) {
  constexpr bool kLong = kMode & kLongIndex;
  constexpr int kChannel = kMode & ~kLongIndex;
  if constexpr (kChannel == kContiguous && N > 1) {
    widen_all(parameter, load<T, N>(p + split_index<kLong>(i, view.channels, view.by_channels).remainder));
  } else {
    const long long inner = view.inner, channels = view.channels;
    const Divided place = split_index<kLong>(i, inner, view.by_inner);
    long long c = split_index<kLong>(place.quotient, channels, view.by_channels).remainder, r = place.remainder;
    parameter[0] = widen(p[c]);
#pragma unroll
    for (int j = 1; j < N; ++j) {
      if constexpr (kChannel == kWalking) {
        if (++r == inner) {
          r = 0;
          c = c + 1 == channels ? 0 : c + 1;
        }
        parameter[j] = widen(p[c]);
      } else {
        parameter[j] = parameter[0];
      }
    }
  }
}

// Rows of one channel: for inner a multiple of N. Block b of channels x splits takes a part of channel b % channels.
// `body.template read<N>(i)` loads what N elements from element i on need, `body.run(i, inputs, parameter, terms)`
// writes their results and gives their terms. The loads of kFlight steps are issued before their results: the compiler
// may not move a load over a store by itself.
constexpr int kFlight = 2;

template <int N, int kThreads, typename T, typename A, typename Body>
__device__ __forceinline__ void sum_rows(const Body& body, const T* p, A* partial, long long outer, long long channels,
                                         long long inner, long long splits) {
  __shared__ A shared[kThreads / kWarp];
  const Divided place = divide_index(blockIdx.x, channels);
  const long long c = place.remainder, split = place.quotient, vectors = inner / N, items = outer * vectors;
  const long long chunk = (items + splits - 1) / splits,
                  end = items < (split + 1) * chunk ? items : (split + 1) * chunk;
  A parameter[N], terms[N], sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) parameter[j] = widen(p[c]);
  for (long long t = split * chunk + threadIdx.x; t < end; t += kFlight * kThreads) {
    typename Body::template Inputs<N> inputs[kFlight];
    long long i[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const Divided at = divide_index(t + f * kThreads, vectors);
      i[f] = (at.quotient * channels + c) * inner + at.remainder * N;
      if (t + f * kThreads < end) inputs[f] = body.template read<N>(i[f]);
    }
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      if (t + f * kThreads >= end) break;
      body.run(i[f], inputs[f], parameter, terms);
      A part = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) part += terms[j];
      sum += part;
    }
  }
  sum = block_reduce<kThreads>(sum, Sum(), shared);
  if (threadIdx.x == 0) partial[c * splits + split] = sum;
}

// Columns: every channel and place of inner is a column of its own, channels x inner a multiple of N; the second kernel
//          then adds up
// inner x splits partial sums for each channel. A block holds kColumns vectors of columns and walks down outer; block b
// of tiles x splits takes tile b % tiles, and every so manieth stretch of rows: all blocks read near each other.
template <int N, int kThreads, int kColumns, typename T, typename A, typename Body>
__device__ __forceinline__ void sum_columns(const Body& body, const T* p, A* partial, long long outer,
                                            long long channels, long long inner, long long splits) {
  constexpr int kRows = kThreads / kColumns;
  __shared__ A shared[kRows][kColumns * N];
  const long long width = channels * inner, tiles = (width + kColumns * N - 1) / (kColumns * N);
  const Divided place = divide_index(blockIdx.x, tiles);
  const int column = threadIdx.x % kColumns, row = threadIdx.x / kColumns;
  const long long split = place.quotient, c = (place.remainder * kColumns + column) * N;
  constexpr int kStretch = kFlight * kRows;
  A parameter[N], terms[N], sums[N] = {};
  if (c < width) {
#pragma unroll
    for (int j = 0; j < N; ++j) parameter[j] = widen(p[inner == 1 ? c + j : divide_index(c + j, inner).quotient]);
    for (long long r = split * kStretch + row; r < outer; r += splits * kStretch) {
      typename Body::template Inputs<N> inputs[kFlight];
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (r + f * kRows < outer) inputs[f] = body.template read<N>((r + f * kRows) * width + c);
      }
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (r + f * kRows >= outer) break;
        body.run((r + f * kRows) * width + c, inputs[f], parameter, terms);
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += terms[j];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) shared[row][column * N + j] = sums[j];
  __syncthreads();
  for (int k = threadIdx.x; k < kColumns * N; k += kThreads) {
    A sum = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum += shared[r][k];
    const long long target = place.remainder * kColumns * N + k;
    if (target < width) partial[target * splits + split] = sum;
  }
}

// The one that the settings ask for: kColumns is 0 for rows.
template <int N, int kThreads, int kColumns, typename T, typename A, typename Body>
__device__ __forceinline__ void sum_channels(const Body& body, const T* p, A* partial, long long outer,
                                             long long channels, long long inner, long long splits) {
  if constexpr (kColumns == 0) {
    sum_rows<N, kThreads>(body, p, partial, outer, channels, inner, splits);
  } else {
    sum_columns<N, kThreads, kColumns>(body, p, partial, outer, channels, inner, splits);
  }
}

}  // namespace dnnarray
