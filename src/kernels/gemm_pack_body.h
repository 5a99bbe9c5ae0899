// Packing over the vector type of the including file. Included once per instruction set, inside its target region and anonymous
// namespace, after `struct Isa`.

constexpr int unit_vector = Isa::width;  // units per vector
constexpr int panel_vectors = Isa::panel_vectors;
constexpr int panel_width = panel_vectors * unit_vector;
constexpr int max_rows = Isa::max_rows;
constexpr int chunk_units = 4;
constexpr int line_units = 16;  // units of a cache line

/// Row `i` of the source from `element` on. Where fewer than `width` elements may be read, they are copied to `whole` and completed
/// with zeros.
template <int64_t width, int64_t bytes>
inline const std::byte* row_piece(const PackSource& s, int64_t i, int64_t element, std::byte* whole) {
  const std::byte* from = s.rows[s.first_row + i] + (s.first_element + element) * bytes;
  int64_t left = s.num_elements - element;
  if (left >= width) return from;
  __builtin_memset(whole, 0, width * bytes);
  __builtin_memcpy(whole, from, static_cast<size_t>(left * bytes));
  return whole;
}

template <DType type>
void pack_rows_as_floats(const PackSource& s, float* out) {
  constexpr int64_t bytes = size_of(type);
  constexpr bool swapped = type == DType::bf16;  // the odd element of a pair first
  const int64_t units = units_of(s.num_rows, type, false);
  alignas(64) std::byte whole[panel_width * 4];
  for (int64_t u = 0; u < units; ++u) {
    const int64_t k = swapped ? u ^ 1 : u;
    const bool missing = k >= s.num_rows;
    const std::byte* row = missing ? nullptr : row_piece<panel_width, bytes>(s, k, 0, whole);
    for (int j = 0; j < panel_vectors; ++j) {
      Isa::store(out + u * panel_width + j * unit_vector, missing ? Isa::zero() : Isa::template load_as<type>(row + j * unit_vector * bytes));
    }
  }
}

template <typename I>
void pack_rows_as_pairs(const PackSource& s, float* out) {
  alignas(64) std::byte whole[2][panel_width * 2];
  alignas(64) static constexpr std::byte zeros[panel_width * 2] = {};
  for (int64_t k = 0; k < s.num_rows; k += 2, out += panel_width) {
    const std::byte* even = row_piece<panel_width, 2>(s, k, 0, whole[0]);
    const std::byte* odd = k + 1 < s.num_rows ? row_piece<panel_width, 2>(s, k + 1, 0, whole[1]) : zeros;
    typename I::V units[panel_vectors];
    I::interleave(even, odd, units);
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; ++j) I::store(out + j * unit_vector, units[j]);
  }
}

template <typename I>
void pack_bf16_rows(const PackSource& s, float* out) {
  if constexpr (I::has_pairs)
    pack_rows_as_pairs<I>(s, out);
  else
    pack_rows_as_floats<DType::bf16>(s, out);
}

/// One square of 32-bit words, transposed in registers: row i of `unit_vector` rows becomes column i of as many units.
inline void transpose_square(const std::byte* rows, int64_t stride, float* out) {
  typename Isa::V square[unit_vector];
  PLAIT_UNROLL
  for (int i = 0; i < unit_vector; ++i) square[i] = Isa::template load_as<DType::f32>(rows + i * stride);
  Isa::transpose(square);
  PLAIT_UNROLL
  for (int i = 0; i < unit_vector; ++i) Isa::store(out + i * panel_width, square[i]);
}

/// The same for a square that may be cut off on either side, of any type (bf16: of pairs, which become two units where units are single).
template <DType type>
void pack_square(const PackSource& s, int64_t row, int64_t element, int64_t units, float* out) {
  constexpr int64_t bytes = size_of(type);
  constexpr int64_t elements = type == DType::bf16 ? 2 * unit_vector : unit_vector;
  typename Isa::V square[unit_vector];
  alignas(64) std::byte whole[elements * bytes];
  PLAIT_UNROLL
  for (int i = 0; i < unit_vector; ++i) {
    square[i] = Isa::zero();
    if (row + i < s.num_rows) {
      const std::byte* from = row_piece<elements, bytes>(s, row + i, element, whole);
      square[i] = type == DType::f16 ? Isa::template load_as<DType::f16>(from) : Isa::template load_as<DType::f32>(from);
    }
  }
  Isa::transpose(square);
  constexpr bool split = type == DType::bf16 && !Isa::has_pairs;
  const int64_t unit = units_of(element, type, Isa::has_pairs);
  PLAIT_UNROLL
  for (int i = 0; i < unit_vector; ++i) {
    const int64_t u = unit + (split ? 2 * i : i);
    if (u >= units) return;
    Isa::store(out + u * panel_width + row, split ? Isa::high_half(square[i]) : square[i]);
    if (split) Isa::store(out + (u + 1) * panel_width + row, Isa::low_half(square[i]));
  }
}

template <DType type>
void pack_columns(const PackSource& s, float* out) {
  constexpr int64_t elements = type == DType::bf16 ? 2 * unit_vector : unit_vector;
  const int64_t units = units_of(s.num_elements, type, Isa::has_pairs);
  for (int64_t row = 0; row < panel_width; row += unit_vector) {
    for (int64_t element = 0; element < s.num_elements; element += elements) pack_square<type>(s, row, element, units, out);
  }
}

void pack(const PackSource& s, float* out) {
  switch (s.type) {
    case DType::bf16:
      return s.k_in_rows ? pack_bf16_rows<Isa>(s, out) : pack_columns<DType::bf16>(s, out);
    case DType::f16:
      return s.k_in_rows ? pack_rows_as_floats<DType::f16>(s, out) : pack_columns<DType::f16>(s, out);
    default:
      return s.k_in_rows ? pack_rows_as_floats<DType::f32>(s, out) : pack_columns<DType::f32>(s, out);
  }
}

template <DType type>
void convert_rows_of(const PackSource& s, float* out, int64_t out_stride) {
  alignas(64) std::byte whole[unit_vector * size_of(type)];
  for (int64_t i = 0; i < s.num_rows; ++i) {
    for (int64_t e = 0; e < s.num_elements; e += unit_vector) {
      typename Isa::V v = Isa::template load_as<type>(row_piece<unit_vector, size_of(type)>(s, i, e, whole));
      Isa::store(out + i * out_stride + e, type == DType::bf16 ? Isa::swap_neighbours(v) : v);
    }
  }
}

/// Writes whole vectors: a row of `out` has room for num_elements rounded up to a vector.
void convert_rows(const PackSource& s, float* out, int64_t out_stride) {
  switch (s.type) {
    case DType::bf16:
      return convert_rows_of<DType::bf16>(s, out, out_stride);
    case DType::f16:
      return convert_rows_of<DType::f16>(s, out, out_stride);
    default:
      return convert_rows_of<DType::f32>(s, out, out_stride);
  }
}

// Where multiply_rows takes its panel from, unit by unit. next_chunk() is called before every chunk_units units; few_rows tells whether
// products of less than four rows occur.

/// A packed panel. `keep` stops the compiler from loading a vector once per row instead of once.
class PackedPanel {
 public:
  static constexpr bool few_rows = true;
  explicit PackedPanel(const float* b) : b_(b) {}
  void next_chunk() {}
  [[gnu::always_inline]] inline void next_unit(typename Isa::V bv[panel_vectors]) {
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; ++j) {
      bv[j] = Isa::load(b_ + j * unit_vector);
      Isa::keep(bv[j]);
    }
    b_ += panel_width;
  }

 private:
  const float* b_;
};

/// Rows at a constant distance, k running over them, read as they are; packed on the way where `store` is set.
template <bool pairs, bool store, typename I = Isa>
class RowPanel {
 public:
  static constexpr bool few_rows = !store;  // packing serves several blocks of rows
  RowPanel(const PackSource& s, float* out)
      : row_(s.rows[s.first_row] + s.first_element * (pairs ? 2 : 4)), stride_(s.rows.stride_bytes), out_(out) {}
  void next_chunk() {}
  [[gnu::always_inline]] inline void next_unit(typename I::V bv[panel_vectors]) {
    if constexpr (pairs) {
      I::interleave(row_, row_ + stride_, bv);
      row_ += 2 * stride_;
    } else {
      PLAIT_UNROLL
      for (int j = 0; j < panel_vectors; ++j) bv[j] = I::template load_as<DType::f32>(row_ + j * unit_vector * 4);
      row_ += stride_;
    }
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; ++j) {
      I::keep(bv[j]);
      if constexpr (store) I::store(out_ + j * unit_vector, bv[j]);
    }
    if constexpr (store) out_ += panel_width;
  }

 private:
  const std::byte* row_;
  int64_t stride_;
  float* out_;
};

/// Rows at a constant distance, k running along them: a cache line of every row is transposed at a time, while the line before is being
/// multiplied. Whole lines only; what follows them is packed already.
template <bool pairs>
class ColumnPanel {
 public:
  static constexpr bool few_rows = true;
  ColumnPanel(const PackSource& s, float* out)
      : rows_(s.rows[s.first_row] + s.first_element * (pairs ? 2 : 4)),
        stride_(s.rows.stride_bytes),
        lines_left_(s.num_elements / (pairs ? 2 * line_units : line_units)),
        out_(out),
        packed_(out) {
    pack_line();
  }
  [[gnu::always_inline]] inline void next_chunk() {
    if (lines_left_ > 0 && chunk_++ % (line_units / chunk_units) == 0) pack_line();
  }
  [[gnu::always_inline]] inline void next_unit(typename Isa::V bv[panel_vectors]) { packed_.next_unit(bv); }

 private:
  /// Not inlined: the accumulators around it go to memory and back once per line.
  [[gnu::noinline]] void pack_line() {
    for (int row = 0; row < panel_width; row += unit_vector) {
      for (int unit = 0; unit < line_units; unit += unit_vector) {
        transpose_square(rows_ + row * stride_ + unit * 4, stride_, out_ + unit * panel_width + row);
      }
    }
    rows_ += line_units * 4;
    out_ += line_units * panel_width;
    --lines_left_;
  }

  const std::byte* rows_;
  int64_t stride_;
  int64_t lines_left_;
  float* out_;
  PackedPanel packed_;
  uint32_t chunk_ = 0;
};
