// rows x panel products over the vector type of the including file. Included once per instruction set, inside its target region and
// anonymous namespace, after `struct Isa` and gemm_pack_body.h.

template <int R>
using Accumulators = typename Isa::V[R][panel_vectors];

template <bool pairs, typename I = Isa>
inline typename I::V dot(typename I::V acc, typename I::V a, typename I::V b) {
  if constexpr (pairs)
    return I::dot_pairs(acc, a, b);
  else
    return I::fma(acc, a, b);
}

template <DType type, int R>
[[gnu::always_inline]] inline void write_rows(const PanelProduct& p, int64_t row, const Accumulators<R>& acc) {
  constexpr int64_t bytes = size_of(type);
  PLAIT_UNROLL
  for (int r = 0; r < R; ++r) {
    std::byte* out = p.out[row + r] + p.out_offset;
    alignas(64) std::byte whole[panel_width * 4];
    std::byte* to = p.columns == panel_width ? out : whole;
    if (p.accumulate && to == whole) __builtin_memcpy(whole, out, static_cast<size_t>(p.columns * bytes));
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; ++j) {
      typename Isa::V value = acc[r][j];
      if (type == DType::f32 && p.accumulate) value = Isa::add(Isa::template load_as<DType::f32>(to + j * Isa::width * 4), value);
      Isa::template store_as<type>(to + j * Isa::width * bytes, value);
    }
    if (to == whole) __builtin_memcpy(out, whole, static_cast<size_t>(p.columns * bytes));
  }
}

template <int R>
[[gnu::always_inline]] inline void finish_rows(const PanelProduct& p, int64_t row, Accumulators<R>& acc) {
  if (p.store_acc) {
    PLAIT_UNROLL
    for (int r = 0; r < R; ++r) {
      PLAIT_UNROLL
      for (int j = 0; j < panel_vectors; ++j) Isa::store(p.acc + (row + r) * p.acc_stride + j * Isa::width, acc[r][j]);
    }
    return;
  }
  if (p.bias) {
    PLAIT_UNROLL
    for (int r = 0; r < R; ++r) {
      PLAIT_UNROLL
      for (int j = 0; j < panel_vectors; ++j) acc[r][j] = Isa::add(acc[r][j], Isa::load(p.bias + j * Isa::width));
    }
  }
  if (p.out_type == DType::bf16)
    write_rows<DType::bf16, R>(p, row, acc);
  else if (p.out_type == DType::f16)
    write_rows<DType::f16, R>(p, row, acc);
  else
    write_rows<DType::f32, R>(p, row, acc);
}

/// Lines of the results are fetched for writing before they are stored; past the last row come those of the next panel.
[[gnu::always_inline]] inline void fetch_results(const PanelProduct& p, int64_t row, int rows) {
  const int64_t bytes = panel_width * (p.out_type == DType::f32 ? 4 : 2);
  int64_t offset = p.out_offset;
  for (int r = 0; r < rows; ++r, ++row) {
    if (row >= p.num_rows) {
      row -= p.num_rows;
      offset += bytes;
      if (row >= p.num_rows) return;
    }
    const std::byte* line = p.out[row] + offset;
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(line + byte, 1, 3);
  }
}

/// R rows by one panel: the accumulators stay in registers over all units. There is one copy of the multiplications only, so that the
/// compiler has no reason to move accumulators to memory between loops; half a unit is a second round over a copy of it.
template <bool pairs, int R, typename Panel>
void multiply_rows(const PanelProduct& p, int64_t row, Panel panel) {
  using V = typename Isa::V;
  const std::byte* a[R];
  uint32_t half_units[R];
  Accumulators<R> acc;
  PLAIT_UNROLL
  for (int r = 0; r < R; ++r) {
    a[r] = p.a[row + r] + p.a_offset;
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; ++j) acc[r][j] = p.load_acc ? Isa::load(p.acc + (row + r) * p.acc_stride + j * Isa::width) : Isa::zero();
  }
  if (!p.store_acc) fetch_results(p, row + p.out_ahead, R);
  int64_t offset = 0;
  int64_t units = p.units;
  bool half_unit = p.half_unit;
  for (;;) {
    while (units > 0) {
      const int64_t chunk_end = units > chunk_units ? units - chunk_units : 0;
      panel.next_chunk();
      p.prefetch->fetch(row == 0 ? p.prefetch->first_rate : p.prefetch->rest_rate);
      for (; units > chunk_end; --units, offset += p.a_step) {
        V bv[panel_vectors];
        panel.next_unit(bv);
        PLAIT_UNROLL
        for (int r = 0; r < R; ++r) {
          V av = Isa::broadcast(a[r] + offset);
          PLAIT_UNROLL
          for (int j = 0; j < panel_vectors; ++j) acc[r][j] = dot<pairs>(acc[r][j], av, bv[j]);
        }
      }
    }
    if (!half_unit) break;
    half_unit = false;
    PLAIT_UNROLL
    for (int r = 0; r < R; ++r) {
      uint16_t low;
      __builtin_memcpy(&low, a[r] + offset, sizeof low);
      half_units[r] = low;
      a[r] = reinterpret_cast<const std::byte*>(&half_units[r]);
    }
    offset = 0;
    units = 1;
  }
  finish_rows<R>(p, row, acc);
}

template <bool pairs, typename Panel>
void multiply_up_to_max(const PanelProduct& p, int64_t row, int64_t rows, const Panel& panel) {
  static_assert(max_rows == 6);
  switch (rows) {
    case 1:
      return multiply_rows<pairs, 1>(p, row, panel);
    case 2:
      return multiply_rows<pairs, 2>(p, row, panel);
    case 3:
      return multiply_rows<pairs, 3>(p, row, panel);
    case 4:
      return multiply_rows<pairs, 4>(p, row, panel);
    case 5:
      return multiply_rows<pairs, 5>(p, row, panel);
    default:
      return multiply_rows<pairs, 6>(p, row, panel);
  }
}

/// Blocks of rows as equal as can be: a block of one or two rows would leave the multipliers idle. `first` serves the first block and
/// leaves the panel packed for the others.
template <bool pairs, typename Panel>
void multiply_panel(const PanelProduct& p, const Panel& first) {
  int64_t blocks = (p.num_rows + max_rows - 1) / max_rows;
  int64_t row = (p.num_rows + blocks - 1) / blocks;
  multiply_up_to_max<pairs>(p, 0, row, first);
  while (--blocks > 0) {
    int64_t rows = (p.num_rows - row + blocks - 1) / blocks;
    multiply_up_to_max<pairs>(p, row, rows, PackedPanel(p.b));
    row += rows;
  }
}

/// The columns of a panel that stands transposed in memory: whole lines are packed while multiplying, the rest before.
template <bool pairs>
void multiply_transposed(const PanelProduct& p) {
  constexpr int64_t line_elements = pairs ? 2 * line_units : line_units;
  PackSource rest = *p.source;
  const int64_t lines = rest.num_elements / line_elements;
  rest.first_element += lines * line_elements;
  rest.num_elements -= lines * line_elements;
  if (rest.num_elements > 0) pack(rest, p.b + lines * line_units * panel_width);
  multiply_panel<pairs>(p, ColumnPanel<pairs>(*p.source, p.b));
}

template <bool pairs>
void multiply_units(const PanelProduct& p) {
  if (p.source == nullptr) return multiply_panel<pairs>(p, PackedPanel(p.b));
  const PackSource& s = *p.source;
  const bool words = s.type == DType::f32 || (s.type == DType::bf16 && pairs);
  if (words && p.columns == panel_width && s.rows.list == nullptr) {
    const bool whole_units = !pairs || (s.k_in_rows ? s.num_rows : s.num_elements) % 2 == 0;
    if (s.k_in_rows && whole_units) {
      if (p.num_rows <= max_rows) return multiply_panel<pairs>(p, RowPanel<pairs, false>(s, p.b));
      return multiply_panel<pairs>(p, RowPanel<pairs, true>(s, p.b));
    }
    if (!s.k_in_rows && s.num_elements >= (pairs ? 2 * line_units : line_units)) return multiply_transposed<pairs>(p);
  }
  pack(s, p.b);
  multiply_panel<pairs>(p, PackedPanel(p.b));
}

void multiply(const PanelProduct& p) {
  if (p.pairs)
    multiply_units<Isa::has_pairs>(p);
  else
    multiply_units<false>(p);
}
