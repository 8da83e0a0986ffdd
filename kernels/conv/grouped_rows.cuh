// Convolution of small groups that walks down the rows of images: which rows a block brings to shared memory and where
// they stand.
#pragma once

#include "conv/grouped.cuh"

namespace dnnarray {

// What blocks divide images into: `rows` rows of `columns` columns of outputs or inputs.
struct Parts {
  int down, across, rows, columns, count;

  __device__ __forceinline__ Parts(int batch, int height, int width, int rows_, int columns_)
      : down((height - 1) / rows_ + 1),
        across((width - 1) / columns_ + 1),
        rows(rows_),
        columns(columns_),
        count(batch * down * across) {}
};

struct Part {
  int image, row, end, column;

  __device__ __forceinline__ Part(int index, const Parts& parts, int height) {
    const int by_w = index / parts.across, by_h = by_w / parts.down;
    column = (index - by_w * parts.across) * parts.columns;
    row = (by_w - by_h * parts.down) * parts.rows;
    end = min(row + parts.rows, height);
    image = by_h;
  }
};

// An image and its rows in shared memory, `columns` pixels each; distances in elements.
template <typename T>
struct Rows {
  const T* image;  // the block's first channel
  long long n;
  int h, w, height, width, columns;

  // Asks for row `at` from column `left` on; zeros outside.
  __device__ __forceinline__ void bring(unsigned smem, int index, int at, int left, const PieceShare& share, int pitch,
                                        bool inside) const {
    const bool there = inside && static_cast<unsigned>(at) < static_cast<unsigned>(height);
    const T* row = image + index * n + share.vector * 8;
    for (int i = share.first; i < columns; i += share.step) {
      const bool here = there && static_cast<unsigned>(left + i) < static_cast<unsigned>(width);
      cp_async_cg(smem + i * pitch + share.vector * 16, here ? row + (at * h + (left + i) * w) : row, here);
    }
  }
};

// A place in a ring of rows in shared memory.
template <int kSlots>
struct Slot {
  int index = 0;
  __device__ __forceinline__ void advance(int steps) { index = after(steps); }
  // The ones so many steps behind it and before it, fewer than kSlots.
  __device__ __forceinline__ int after(int steps) const {
    return index + steps < kSlots ? index + steps : index + steps - kSlots;
  }
  __device__ __forceinline__ int before(int steps) const {
    return index < steps ? index - steps + kSlots : index - steps;
  }
};

}  // namespace dnnarray
