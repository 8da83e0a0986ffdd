// The gradient of the negative log-likelihood: dz[t] = -w[t] g at the label of each row, 0 elsewhere; NaN in a row
// whose label names no class.
//
// Layout:  dz (outer, classes, inner), rows numbered outer * inner + column. kColumns false, inner is 1: kLanes threads
//          write a row, in vectors and, kRagged, single classes before and behind them. kColumns: a thread owns kVector
//          neighbouring rows and writes `part` of the classes, those of its block's row.
// Needs:   dz aligned to kVector elements; kColumns: inner a multiple of kVector; kRagged: at least 2 (kVector - 1)
//          lanes.
// Bound:   memory: dz written once.

#include "dnnarray/core/index.cuh"
#include "loss/targets.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  using Element = float;
  using Target = long long;
  static constexpr bool kRowGradients = false;
  static constexpr bool kColumns = false;
  static constexpr bool kRagged = false;
  static constexpr int kVector = 4;
  static constexpr int kLanes = 32;
  static constexpr int kThreads = 128;
};
struct Arguments {
  long long rows;
  long long classes;
  long long inner;
  long long ignore;
  long long parts;
  long long part;
};
#define DNNARRAY_ENTRY loss_nll_backward_default
#endif

using namespace dnnarray;
using T = Config::Element;
using A = arithmetic_t<T>;
constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kThreads = Config::kThreads;
using V = Vec<T, kVector>;

// What stands in a row: `value` at the class `place`, `rest` at all others.
struct Entry {
  long long place;
  T value, rest;

  Entry() = default;
  __device__ __forceinline__ Entry(const Label& label, const T* weight, A g)
      : place(label.kept && label.valid ? label.index : -1),
        value(narrow<T>(-label.weight(weight) * g)),
        rest(narrow<T>(label.kept && !label.valid ? quiet_nan(A(0)) : A(0))) {}
  __device__ __forceinline__ T at(long long c) const { return c == place ? value : rest; }
};

__device__ __forceinline__ void write_row(T* row, const Entry& entry,
                                          const RowVectors<kVector, Config::kRagged>& vectors, int lane) {
  V rest;
#pragma unroll
  for (int v = 0; v < kVector; ++v) rest.at[v] = entry.rest;
  for (long long c = vectors.first(lane); c < vectors.before + vectors.count * kVector; c += kLanes * kVector) {
    const unsigned long long ahead = static_cast<unsigned long long>(entry.place - c);
    V part = rest;
    if (ahead < kVector) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) part.at[v] = entry.at(c + v);
    }
    store(row + c, part);
  }
  const long long edge = vectors.edge(lane);
  if (edge >= 0) row[edge] = entry.at(edge);
}

// `grad` holds the gradient of each row's loss or (kRowGradients false) that of their sum over the sum of `parts`
// totals, or of their sum where those are not given.
extern "C" __global__ void __launch_bounds__(kThreads)
    DNNARRAY_ENTRY(const T* __restrict__ grad, const Config::Target* __restrict__ target, const T* __restrict__ weight,
                   const A* __restrict__ totals, T* __restrict__ dz, const __grid_constant__ Arguments a) {
  const A shared_factor = Config::kRowGradients ? A(1) : widen(grad[0]) / total_of(totals, a.parts, 1.0);
  const auto entry = [&](long long r) {
    return Entry(Label(target[r], a.classes, a.ignore), weight, Config::kRowGradients ? widen(grad[r]) : shared_factor);
  };
  const long long thread = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (Config::kColumns) {
    const long long r = thread * kVector, first = blockIdx.y * a.part,
                    end = first + a.part < a.classes ? first + a.part : a.classes;
    if (r >= a.rows) return;
    const Divided place = divide_index(r, a.inner);
    Entry entries[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) entries[v] = entry(r + v);
    T* to = dz + (place.quotient * a.classes + first) * a.inner + place.remainder;
#pragma unroll 4
    for (long long c = first; c < end; ++c) {
      V column;
#pragma unroll
      for (int v = 0; v < kVector; ++v) column.at[v] = entries[v].at(c);
      store(to, column);
      to += a.inner;
    }
  } else {
    const long long r = thread / kLanes;
    if (r >= a.rows) return;
    write_row(dz + r * a.classes, entry(r), RowVectors<kVector, Config::kRagged>(r * a.classes, a.classes),
              threadIdx.x % kLanes);
  }
}
