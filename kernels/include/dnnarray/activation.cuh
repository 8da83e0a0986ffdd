// Every activation once: forward(x, p, q) and gradient(g, x, p, q) with up to two parameters, for stand-alone and fused use.
#pragma once

#include "dnnarray/dtype.cuh"

namespace dnnarray {

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ float erf_of(float x) { return erff(x); }
__device__ __forceinline__ double erf_of(double x) { return erf(x); }
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }

// x > 0 ? x : 0 would turn NaN into 0.
struct Relu {
  template <typename A>
  static __device__ __forceinline__ A forward(A x, A, A) {
    return x < A(0) ? A(0) : x;
  }
  template <typename A>
  static __device__ __forceinline__ A gradient(A g, A x, A, A) {
    return x > A(0) ? g : A(0);
  }
};

struct LeakyRelu {  // p: negative slope
  template <typename A>
  static __device__ __forceinline__ A forward(A x, A p, A) {
    return x > A(0) ? x : x * p;
  }
  template <typename A>
  static __device__ __forceinline__ A gradient(A g, A x, A p, A) {
    return x > A(0) ? g : g * p;
  }
};

struct Gelu {
  template <typename A>
  static __device__ __forceinline__ A forward(A x, A, A) {
    return x * A(0.5) * (A(1) + erf_of(x * A(0.70710678118654752440)));
  }
  template <typename A>
  static __device__ __forceinline__ A gradient(A g, A x, A, A) {
    A cdf = A(0.5) * (A(1) + erf_of(x * A(0.70710678118654752440)));
    return g * (cdf + x * A(0.39894228040143267794) * exp_of(A(-0.5) * x * x));
  }
};

}  // namespace dnnarray
