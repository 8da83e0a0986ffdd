// One parameter per channel of an array that is outer x channels x inner in memory: reading it beside the elements, and summing terms over
// everything but the channel.
//
// The sums are made in two stages of fixed order, so that they have the same bits at every run: each block writes one partial sum per
// channel to `partial` (channels x splits), and a second kernel adds those up.
#pragma once

#include "dnnarray/index.cuh"
#include "dnnarray/reduce.cuh"
#include "dnnarray/vec.cuh"

namespace dnnarray {

// How the channel runs along a vector of elements.
enum Channel {
  kUniform,     // all elements of a vector are of one channel: inner is a multiple of its length, or there is one channel
  kContiguous,  // inner is 1 and the number of channels a multiple of the vector's length
  kWalking,     // anything else
};

// The parameters of N elements from element i on.
template <int N, int kChannel, typename T, typename A>
__device__ __forceinline__ void load_parameters(const T* p, long long i, long long channels, long long inner, A (&parameter)[N]) {
  if constexpr (kChannel == kContiguous && N > 1) {
    const Vec<T, N> reg = load<T, N>(p + divide_index(i, channels).remainder);
#pragma unroll
    for (int j = 0; j < N; ++j) parameter[j] = widen(reg.at[j]);
  } else {
    const Divided place = divide_index(i, inner);
    long long c = divide_index(place.quotient, channels).remainder, r = place.remainder;
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

// Rows of one channel: for inner > 1, a multiple of N, or one channel. Block b of channels x splits takes a part of channel b % channels.
// `body.template run<N>(i, parameter, terms)` does N elements from element i on and gives their terms.
template <int N, int kThreads, typename T, typename A, typename Body>
__device__ __forceinline__ void sum_rows(const Body& body, const T* p, A* partial, long long outer, long long channels, long long inner,
                                         long long splits) {
  __shared__ A shared[kThreads / kWarp];
  const Divided place = divide_index(blockIdx.x, channels);
  const long long c = place.remainder, split = place.quotient, vectors = inner / N, items = outer * vectors;
  const long long chunk = (items + splits - 1) / splits, end = items < (split + 1) * chunk ? items : (split + 1) * chunk;
  A parameter[N], terms[N], sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) parameter[j] = widen(p[c]);
#pragma unroll 2
  for (long long t = split * chunk + threadIdx.x; t < end; t += kThreads) {
    const Divided at = divide_index(t, vectors);
    body.template run<N>((at.quotient * channels + c) * inner + at.remainder * N, parameter, terms);
    A part = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) part += terms[j];
    sum += part;
  }
  sum = block_reduce<kThreads>(sum, Sum(), shared);
  if (threadIdx.x == 0) partial[c * splits + split] = sum;
}

// Columns: for inner 1 and a number of channels that is a multiple of N. A block holds kColumns vectors of channels and walks down rows;
// block b of tiles x splits takes tile b % tiles.
template <int N, int kThreads, int kColumns, typename T, typename A, typename Body>
__device__ __forceinline__ void sum_columns(const Body& body, const T* p, A* partial, long long outer, long long channels, long long splits) {
  constexpr int kRows = kThreads / kColumns;
  __shared__ A shared[kRows][kColumns * N];
  const long long tiles = (channels + kColumns * N - 1) / (kColumns * N);
  const Divided place = divide_index(blockIdx.x, tiles);
  const int column = threadIdx.x % kColumns, row = threadIdx.x / kColumns;
  const long long split = place.quotient, c = (place.remainder * kColumns + column) * N;
  const long long chunk = (outer + splits - 1) / splits, end = outer < (split + 1) * chunk ? outer : (split + 1) * chunk;
  A parameter[N], terms[N], sums[N] = {};
  if (c < channels) {
    const Vec<T, N> reg = load<T, N>(p + c);
#pragma unroll
    for (int j = 0; j < N; ++j) parameter[j] = widen(reg.at[j]);
#pragma unroll 2
    for (long long r = split * chunk + row; r < end; r += kRows) {
      body.template run<N>(r * channels + c, parameter, terms);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += terms[j];
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) shared[row][column * N + j] = sums[j];
  __syncthreads();
  for (int k = threadIdx.x; k < kColumns * N; k += kThreads) {
    A sum = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum += shared[r][k];
    const long long channel = place.remainder * kColumns * N + k;
    if (channel < channels) partial[channel * splits + split] = sum;
  }
}

// The one that the settings ask for: kColumns is 0 for rows.
template <int N, int kThreads, int kColumns, typename T, typename A, typename Body>
__device__ __forceinline__ void sum_channels(const Body& body, const T* p, A* partial, long long outer, long long channels,
                                             long long inner, long long splits) {
  if constexpr (kColumns == 0) {
    sum_rows<N, kThreads>(body, p, partial, outer, channels, inner, splits);
  } else {
    sum_columns<N, kThreads, kColumns>(body, p, partial, outer, channels, splits);
  }
}

}  // namespace dnnarray
