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
    widen_all(parameter, load<T, N>(p + divide_index(i, channels).remainder));
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

// Rows of one channel: for inner a multiple of N. Block b of channels x splits takes a part of channel b % channels.
// `body.template read<N>(i)` loads what N elements from element i on need, `body.run(i, inputs, parameter, terms)` writes their results and
// gives their terms. The loads of the next kFlight steps are issued before the results of these: the compiler may not move a load over a store by itself.
constexpr int kFlight = 1;

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
  typename Body::template Inputs<N> inputs[kFlight], next[kFlight];
  long long i[kFlight], following[kFlight];
  const auto bring = [&](long long t) {
#pragma unroll
    for (int f = 0; f < kFlight; ++f) {
      const Divided at = divide_index(t + f * kThreads, vectors);
      following[f] = (at.quotient * channels + c) * inner + at.remainder * N;
      if (t + f * kThreads < end) next[f] = body.template read<N>(following[f]);
    }
  };
  long long t = split * chunk + threadIdx.x;
  if (t < end) bring(t);
  for (; t < end; t += kFlight * kThreads) {
#pragma unroll
    for (int f = 0; f < kFlight; ++f) inputs[f] = next[f], i[f] = following[f];
    if (t + kFlight * kThreads < end) bring(t + kFlight * kThreads);
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

// Columns: every channel and place of inner is a column of its own, channels x inner a multiple of N; the second kernel then adds up
// inner x splits partial sums for each channel. A block holds kColumns vectors of columns and walks down outer; block b of tiles x splits
// takes tile b % tiles.
template <int N, int kThreads, int kColumns, typename T, typename A, typename Body>
__device__ __forceinline__ void sum_columns(const Body& body, const T* p, A* partial, long long outer, long long channels, long long inner,
                                            long long splits) {
  constexpr int kRows = kThreads / kColumns;
  __shared__ A shared[kRows][kColumns * N];
  const long long width = channels * inner, tiles = (width + kColumns * N - 1) / (kColumns * N);
  const Divided place = divide_index(blockIdx.x, tiles);
  const int column = threadIdx.x % kColumns, row = threadIdx.x / kColumns;
  const long long split = place.quotient, c = (place.remainder * kColumns + column) * N;
  const long long chunk = (outer + splits - 1) / splits, end = outer < (split + 1) * chunk ? outer : (split + 1) * chunk;
  A parameter[N], terms[N], sums[N] = {};
  if (c < width) {
#pragma unroll
    for (int j = 0; j < N; ++j) parameter[j] = widen(p[inner == 1 ? c + j : divide_index(c + j, inner).quotient]);
    typename Body::template Inputs<N> inputs[kFlight], next[kFlight];
    const auto bring = [&](long long r) {
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (r + f * kRows < end) next[f] = body.template read<N>((r + f * kRows) * width + c);
      }
    };
    long long r = split * chunk + row;
    if (r < end) bring(r);
    for (; r < end; r += kFlight * kRows) {
#pragma unroll
      for (int f = 0; f < kFlight; ++f) inputs[f] = next[f];
      if (r + kFlight * kRows < end) bring(r + kFlight * kRows);
#pragma unroll
      for (int f = 0; f < kFlight; ++f) {
        if (r + f * kRows >= end) break;
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
__device__ __forceinline__ void sum_channels(const Body& body, const T* p, A* partial, long long outer, long long channels,
                                             long long inner, long long splits) {
  if constexpr (kColumns == 0) {
    sum_rows<N, kThreads>(body, p, partial, outer, channels, inner, splits);
  } else {
    sum_columns<N, kThreads, kColumns>(body, p, partial, outer, channels, inner, splits);
  }
}

}  // namespace dnnarray
