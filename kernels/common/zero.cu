// Zeros in memory of any type: +0 of a float has all bits 0.
//
// Layout:  Flat bytes; a thread owns 16 of them.
// Needs:   A pointer aligned to 16 bytes where kAligned.
// Bound:   Memory, which is written once.

#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr bool kAligned = true;
  static constexpr int kThreads = 128;
};
struct Arguments {
  char* out;
  long long bytes;
};
#define DNNARRAY_ENTRY zero_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(const __grid_constant__ Arguments a) {
  char* p = a.out;
  const long long bytes = a.bytes;
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * 16;
  if (Config::kAligned && i + 16 <= bytes) {
    store(reinterpret_cast<unsigned*>(p + i), Vec<unsigned, 4>{});
  } else {
    for (long long j = i; j < i + 16 && j < bytes; ++j) p[j] = 0;
  }
}
