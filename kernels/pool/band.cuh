// Bands: rows of a plane in channels-first memory, or several whole planes, whose gradient a block sums up in shared
//        memory.
#pragma once

#include "pool/window.cuh"

namespace dnnarray {

// `rows` rows of one plane a block, `bands` blocks for it; or `planes` planes a block, and then one band has all rows.
template <bool kAdaptive>
struct Band {
  long long plane;  // the first one
  int planes, h, rows;
  int p, windows;  // rows of windows that may look at it: the first and how many

  __device__ __forceinline__ Band(long long outer, long long planes_, long long rows_, long long bands,
                                  const Axis<kAdaptive>& axis) {
    const Split block = split(blockIdx.x, static_cast<int>(bands));
    plane = block.quotient * planes_;
    planes = static_cast<int>(min(planes_, outer - plane));
    h = block.rest * static_cast<int>(rows_);
    rows = min(static_cast<int>(rows_), axis.extent - h);
    p = axis.cover(h).first;
    windows = max(axis.cover(h + rows - 1).last - p + 1, 0);
  }
};

}  // namespace dnnarray
