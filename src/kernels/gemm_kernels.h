#pragma once
/// What a CPU tier provides for matrix products. The blocking around it (gemm_tile.cc) is the same for every tier.
///
/// Operands are handled in units of 32 bits along k. A unit is one float32, or, on tiers that multiply bf16 pairs directly, a pair of
/// bf16 elements with the even one in the low half. Other tiers convert bf16 to float32 while packing, the odd element of each pair
/// first and an odd k completed by +0, so that the plain float32 chain is the pair chain of docs/numerics.md section 1.

#include <cstddef>
#include <cstdint>

#include "kernels/rows.h"
#include "plait/context.h"
#include "plait/tensor.h"

namespace plait::kernels {

constexpr int64_t num_blocks(int64_t x, int64_t block) { return (x + block - 1) / block; }

/// The widest panel of any tier.
inline constexpr int64_t max_panel_columns = 64;

/// Lines of memory that products will need soon, fetched into the caches while others run: rows of `lines` cache lines, row by row;
/// after block `now` comes block `then`.
struct PrefetchCursor {
  struct Block {
    const std::byte* row = nullptr;
    int64_t rows = 0;
    int64_t lines = 1;
    int64_t stride_bytes = 0;
  };
  Block now, then;
  int64_t line = 0;        ///< the next line of now.row
  int64_t first_rate = 0;  ///< lines fetched per chunk of units by the first rows of a product, which read the panel's source,
  int64_t rest_rate = 0;   ///< and by the others

  [[gnu::always_inline]] inline void fetch(int64_t lines_to_fetch) {
    for (; lines_to_fetch > 0 && now.rows > 0; --lines_to_fetch) {
      __builtin_prefetch(now.row + line * 64, 0, 2);
      if (++line < now.lines) continue;
      line = 0;
      now.row += now.stride_bytes;
      if (--now.rows > 0) continue;
      now = then;
      then.rows = 0;
    }
  }
};

/// A block of a matrix whose elements are contiguous along one axis: rows [first_row, first_row + num_rows) and elements
/// [first_element, first_element + num_elements) of each.
struct PackSource {
  DType type;
  Rows rows;
  int64_t first_row, num_rows;
  int64_t first_element, num_elements;
  bool k_in_rows = true;  ///< k runs over rows and columns over elements; false: the other way round
};

/// rows x panel: out[r][c] = sum over units of a[r][u] * b[u][c], chained to what `acc` holds.
struct PanelProduct {
  bool pairs;  ///< units are bf16 pairs
  Rows a;      ///< row r starts at a[r] + a_offset; unit u at u * a_step bytes from there
  int64_t a_offset = 0;
  int64_t a_step = 4;
  int64_t num_rows = 0;
  int64_t units = 0;                   ///< whole units
  bool half_unit = false;              ///< one more unit, of which only the low half may be read from `a`; `b` has it in full
  float* b = nullptr;                  ///< the packed panel
  const PackSource* source = nullptr;  ///< where not null, b is packed from it first
  int64_t columns = 0;                 ///< columns to write, up to the panel's width
  float* acc = nullptr;                ///< rows of float32 accumulators, acc_stride apart
  int64_t acc_stride = 0;
  bool load_acc = false;   ///< the chain continues from acc; otherwise it starts from +0
  bool store_acc = false;  ///< the chain goes on: store to acc and leave `out` alone
  MutableRows out;
  int64_t out_offset = 0;  ///< bytes into each row of out
  DType out_type = DType::f32;
  const float* bias = nullptr;  ///< one value per column of a panel, or null
  bool accumulate = false;      ///< out (f32) += result
  int64_t out_ahead = 0;        ///< results are fetched for writing so many rows ahead, at most num_rows
  bool stream = false;          ///< whole panels of out, which must be aligned to stream_bytes, go to memory past the caches
  PrefetchCursor* prefetch = nullptr;
};

/// All functions expect FloatMode to be set and touch nothing outside the given blocks.
struct GemmPrimitives {
  int64_t panel_columns;
  int64_t chunk_units;   ///< units per step of a prefetch cursor
  int64_t max_rows;      ///< rows that one pass over a panel serves
  bool pairs;            ///< bf16 is multiplied in pairs
  int64_t stream_bytes;  ///< a panel's row of so many bytes, or a multiple, can go past the caches; 0: none can
  /// Packs one panel (at most panel_columns columns): unit u, column c at out[u * panel_columns + c]. Columns beyond the source's are
  /// zeros.
  void (*pack)(const PackSource& source, float* out);
  /// Rows of float32 units, `out_stride` floats apart: the left operand where it cannot be read in place.
  void (*convert_rows)(const PackSource& source, float* out, int64_t out_stride);
  void (*multiply)(const PanelProduct& product);
};

/// One tier's products. Without primitives the scalar definition of gemm_reference.h is used.
struct GemmKernels {
  Tier tier;
  const GemmPrimitives* primitives;
};

/// The tier's table, or nullptr where this build has none. Does not ask whether the CPU can run it.
const GemmKernels* gemm_kernels(Tier tier);

/// One per instruction set, each in its own file; nullptr where the build's architecture is another.
const GemmPrimitives* gemm_avx2();
const GemmPrimitives* gemm_avx512();
const GemmPrimitives* gemm_avx512_bf16();
const GemmPrimitives* gemm_neon();

/// Units along k of `elements` elements.
constexpr int64_t units_of(int64_t elements, DType type, bool pairs) {
  if (type != DType::bf16) return elements;
  return pairs ? (elements + 1) / 2 : (elements + 1) / 2 * 2;
}

}  // namespace plait::kernels
