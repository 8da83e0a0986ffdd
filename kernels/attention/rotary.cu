// Rotary embedding: each pair (a, b) of features turns to (a cos - b sin, b cos + a sin), or back, by -sin (kBack).
//
// Layout:  x and y are dense in the same order of axes, the features running fastest: rows of `width` features, of
//          which the first 2 * pairs turn. A thread owns kPairs pairs of a row, or a vector of the features that do not
//          turn. The row of the tables that row r of x takes is r / after_s % sequence, and behind each other for r /
//          after_b % batch where batch items have tables of their own.
// Needs:   every row of x and of the tables aligned to the vectors (kWide: pairs that lie side by side are moved as one
//          vector).
// Bound:   memory: x read once, y written once; the tables from L2.

#include "dnnarray/core/index.cuh"
#include "attention/pairs.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Cosine = float;
  using Sine = float;
  static constexpr bool kInterleaved = false;
  static constexpr bool kWide = true;
  static constexpr bool kBack = false;
  static constexpr bool kLong = false;
  static constexpr int kPairs = 4;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long threads;
  long long pairs;
  long long width;
  long long turning;
  long long items;
  long long by_items;
  long long after_s;
  long long by_after_s;
  long long sequence;
  long long by_sequence;
  long long after_b;
  long long by_after_b;
  long long batch;
  long long by_batch;
};
#define DNNARRAY_ENTRY rotary_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int N = Config::kPairs;
constexpr bool kLong = Config::kLong;
using Mine = Pairs<T, N, Config::kInterleaved, Config::kWide>;
constexpr int kCopied = !Config::kInterleaved ? N : Config::kWide ? 2 * N : 1;  // features that one thread copies

// `items` are the threads of a row, `turning` those that turn; by_* divide by the number before them.
extern "C" __global__ void __launch_bounds__(Config::kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ x, const Config::Cosine* __restrict__ cosines,
                   const Config::Sine* __restrict__ sines, T* __restrict__ y, const __grid_constant__ Arguments a) {
  const long long threads = a.threads, pairs = a.pairs, width = a.width, turning = a.turning, items = a.items,
                  by_items = a.by_items, after_s = a.after_s, by_after_s = a.by_after_s, sequence = a.sequence,
                  by_sequence = a.by_sequence, after_b = a.after_b, by_after_b = a.by_after_b, batch = a.batch,
                  by_batch = a.by_batch;
  const long long own = static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (own >= threads) return;
  const Divided place = split_index<kLong>(own, items, by_items);
  const long long row = place.quotient, item = place.remainder;
  if (item >= turning) {
    const long long at = row * width + 2 * pairs + (item - turning) * kCopied;
    store(y + at, load<T, kCopied>(x + at));
    return;
  }
  const long long at = row * width + item * (N * Mine::kStep);
  const auto raw = Mine::load_raw(x + at, pairs);
  const long long s =
      split_index<kLong>(split_index<kLong>(row, after_s, by_after_s).quotient, sequence, by_sequence).remainder;
  const long long b =
      split_index<kLong>(split_index<kLong>(row, after_b, by_after_b).quotient, batch, by_batch).remainder;
  const long long table = (b * sequence + s) * pairs + item * N;
  A cosine[N], sine[N];
  load_table(cosines + table, cosine);
  load_table(sines + table, sine);
  if constexpr (Config::kBack) {
#pragma unroll
    for (int j = 0; j < N; ++j) sine[j] = -sine[j];
  }
  Mine::store_raw(y + at, pairs, Mine(raw).turned(cosine, sine));
}
