// Zeros in memory of any type: +0 of a float is all bits 0.
//
// Layout:  flat bytes; a thread owns 16 of them.
// Needs:   a pointer aligned to 16 bytes, or kAligned false.
// Bound:   memory, written once.

#include "dnnarray/core/vec.cuh"

#ifndef DNNARRAY_CONFIG
struct Config {
  static constexpr bool kAligned = true;
  static constexpr int kThreads = 128;
};
#define DNNARRAY_ENTRY zero_default
#endif

using namespace dnnarray;

extern "C" __global__ void __launch_bounds__(Config::kThreads) DNNARRAY_ENTRY(char* __restrict__ p, long long bytes) {
  const long long i = (static_cast<long long>(blockIdx.x) * Config::kThreads + threadIdx.x) * 16;
  if (Config::kAligned && i + 16 <= bytes) {
    store(reinterpret_cast<unsigned*>(p + i), Vec<unsigned, 4>{});
  } else {
    for (long long j = i; j < i + 16 && j < bytes; ++j) p[j] = 0;
  }
}
