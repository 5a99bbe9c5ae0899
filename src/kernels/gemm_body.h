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

/// Any rows of results: cut off on the right, of any type. `values` holds the finished chains.
[[gnu::noinline]] void write_values(const PanelProduct& p, int64_t row, int64_t rows, const float* values) {
  const int64_t bytes = size_of(p.out_type);
  for (int64_t r = 0; r < rows; ++r, values += panel_width) {
    std::byte* out = p.out[row + r] + p.out_offset;
    alignas(64) std::byte whole[panel_width * 4];
    if (p.accumulate) __builtin_memcpy(whole, out, static_cast<size_t>(p.columns * bytes));
    for (int j = 0; j < panel_width; j += Isa::width) {
      typename Isa::V value = Isa::load(values + j);
      if (p.bias) value = Isa::add(value, Isa::load(p.bias + j));
      if (p.accumulate) value = Isa::add(Isa::template load_as<DType::f32>(whole + j * 4), value);
      if (p.out_type == DType::bf16)
        Isa::template store_as<DType::bf16>(whole + j * 2, value);
      else if (p.out_type == DType::f16)
        Isa::template store_as<DType::f16>(whole + j * 2, value);
      else
        Isa::template store_as<DType::f32>(whole + j * 4, value);
    }
    __builtin_memcpy(out, whole, static_cast<size_t>(p.columns * bytes));
  }
}

/// Whole panels straight from the accumulators.
template <DType type, int R>
[[gnu::always_inline]] inline void write_whole_rows(const PanelProduct& p, int64_t row, const Accumulators<R>& acc) {
  PLAIT_UNROLL
  for (int r = 0; r < R; ++r) {
    std::byte* out = p.out[row + r] + p.out_offset;
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; ++j) {
      typename Isa::V value = acc[r][j];
      if (p.bias) value = Isa::add(value, Isa::load(p.bias + j * Isa::width));
      if (type == DType::f32 && p.accumulate) value = Isa::add(Isa::template load_as<DType::f32>(out + j * Isa::width * 4), value);
      Isa::template store_as<type>(out + j * Isa::width * size_of(type), value);
    }
  }
}

/// The same past the caches: results that are written once and read by nobody soon need not be read from memory first.
/// `acc` holds V vectors of the panel from `first` on.
template <DType type, int R, int V>
[[gnu::always_inline]] inline void stream_rows(const PanelProduct& p, int64_t row, int first, const typename Isa::V (&acc)[R][V]) {
  PLAIT_UNROLL
  for (int r = 0; r < R; ++r) {
    std::byte* out = p.out[row + r] + p.out_offset + first * Isa::width * size_of(type);
    PLAIT_UNROLL
    for (int j = 0; j < V; j += 2) Isa::template stream_as<type>(out + j * Isa::width * size_of(type), acc[r][j], acc[r][j + 1]);
  }
}

template <int R>
[[gnu::always_inline]] inline void finish_rows(const PanelProduct& p, int64_t row, const Accumulators<R>& acc) {
  const bool whole = !p.store_acc && p.columns == panel_width;
  if (whole && p.stream && p.out_type == DType::bf16) return stream_rows<DType::bf16>(p, row, 0, acc);
  if (whole && p.stream && p.out_type == DType::f32) return stream_rows<DType::f32>(p, row, 0, acc);
  if (whole && p.out_type == DType::bf16) return write_whole_rows<DType::bf16, R>(p, row, acc);
  if (whole && p.out_type == DType::f32) return write_whole_rows<DType::f32, R>(p, row, acc);
  alignas(64) float values[R * panel_width];
  float* to = p.store_acc ? p.acc + row * p.acc_stride : values;
  const int64_t stride = p.store_acc ? p.acc_stride : panel_width;
  PLAIT_UNROLL
  for (int r = 0; r < R; ++r) {
    PLAIT_UNROLL
    for (int j = 0; j < panel_vectors; ++j) Isa::store(to + r * stride + j * Isa::width, acc[r][j]);
  }
  if (!p.store_acc) write_values(p, row, R, values);
}

/// Lines of the results of `rows` rows, fetched for writing bit by bit before they are stored: many at once would keep the operands'
/// lines waiting. Past the last row come the results of the next panel.
class ResultLines {
 public:
  ResultLines(const PanelProduct& p, int64_t row, int rows) : p_(p), row_(row + p.out_ahead), offset_(p.out_offset) {
    bytes_ = panel_width * (p.out_type == DType::f32 ? 4 : 2);
    const int64_t chunks = num_blocks(p.units, chunk_units);
    left_ = p.store_acc || p.stream ? 0 : rows * num_blocks(bytes_, 64);
    rate_ = chunks > 1 ? num_blocks(left_, chunks) : left_;
  }
  [[gnu::always_inline]] inline void fetch() {
    for (int64_t i = 0; i < rate_ && left_ > 0; ++i, --left_) {
      if (row_ >= p_.num_rows) {
        row_ -= p_.num_rows;
        offset_ += bytes_;
      }
      __builtin_prefetch(p_.out[row_] + offset_ + byte_, 1, 3);
      byte_ += 64;
      if (byte_ < bytes_) continue;
      byte_ = 0;
      ++row_;
    }
  }

 private:
  const PanelProduct& p_;
  int64_t row_;
  int64_t offset_;
  int64_t byte_ = 0;
  int64_t bytes_;
  int64_t left_;
  int64_t rate_;
};

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
  ResultLines results(p, row, R);
  int64_t offset = 0;
  int64_t units = p.units;
  bool half_unit = p.half_unit;
  for (;;) {
    while (units > 0) {
      const int64_t chunk_end = units > chunk_units ? units - chunk_units : 0;
      panel.next_chunk();
      results.fetch();
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
  if (rows == 6) return multiply_rows<pairs, 6>(p, row, panel);
  if (rows == 5) return multiply_rows<pairs, 5>(p, row, panel);
  if (rows == 4) return multiply_rows<pairs, 4>(p, row, panel);
  if constexpr (Panel::few_rows) {
    if (rows == 3) return multiply_rows<pairs, 3>(p, row, panel);
    if (rows == 2) return multiply_rows<pairs, 2>(p, row, panel);
    return multiply_rows<pairs, 1>(p, row, panel);
  }
}

/// Blocks of rows as equal as can be: a block of one or two rows would leave the multipliers idle. `first` serves the first block and
/// leaves the panel packed for the others.
template <bool pairs, typename Panel>
void multiply_panel(const PanelProduct& p, const Panel& first) {
  int64_t blocks = num_blocks(p.num_rows, max_rows);
  int64_t row = num_blocks(p.num_rows, blocks);
  multiply_up_to_max<pairs>(p, 0, row, first);
  while (--blocks > 0) {
    int64_t rows = num_blocks(p.num_rows - row, blocks);
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

/// So few units that vectors of all of them stay in registers.
constexpr int short_units = panel_vectors == 4 ? 8 : 4;

/// R rows from `row` on, V vectors of the panel from `first` on, past the caches.
template <bool pairs, int units, int V, DType type, int R>
[[gnu::always_inline]] inline void stream_short_rows(const PanelProduct& p, const typename Isa::V (&b)[units][V], int64_t row, int first) {
  typename Isa::V acc[R][V];
  PLAIT_UNROLL
  for (int r = 0; r < R; ++r) {
    const std::byte* a = p.a[row + r] + p.a_offset;
    PLAIT_UNROLL
    for (int j = 0; j < V; ++j) acc[r][j] = Isa::zero();
    PLAIT_UNROLL
    for (int u = 0; u < units; ++u) {
      const typename Isa::V av = Isa::broadcast(a + u * p.a_step);
      PLAIT_UNROLL
      for (int j = 0; j < V; ++j) acc[r][j] = dot<pairs>(acc[r][j], av, b[u][j]);
    }
  }
  stream_rows<type>(p, row, first, acc);
}

/// Where writing the results is most of the work: vectors of the panel are loaded once for all rows.
template <bool pairs, int units, DType type>
void stream_short_panel(const PanelProduct& p) {
  constexpr int vectors = units <= 4 ? panel_vectors : 2, rows = 8 / vectors;
  for (int first = 0; first < panel_vectors; first += vectors) {
    typename Isa::V b[units][vectors];
    PLAIT_UNROLL
    for (int u = 0; u < units; ++u) {
      PLAIT_UNROLL
      for (int j = 0; j < vectors; ++j) b[u][j] = Isa::load(p.b + u * panel_width + (first + j) * unit_vector);
    }
    int64_t row = 0;
    for (; row + rows <= p.num_rows; row += rows) stream_short_rows<pairs, units, vectors, type, rows>(p, b, row, first);
    for (; row < p.num_rows; ++row) stream_short_rows<pairs, units, vectors, type, 1>(p, b, row, first);
  }
}

template <bool pairs, int units = short_units>
void stream_short(const PanelProduct& p) {
  if constexpr (units > 1) {
    if (p.units < units) return stream_short<pairs, units - 1>(p);
  }
  if (p.out_type == DType::bf16) return stream_short_panel<pairs, units, DType::bf16>(p);
  stream_short_panel<pairs, units, DType::f32>(p);
}

/// Half panels of bf16 results are single lines: they gain nothing.
bool is_short_stream(const PanelProduct& p) {
  const int64_t most_units = p.out_type == DType::f32 ? short_units : 4;
  return p.stream && p.source == nullptr && p.units > 0 && p.units <= most_units && p.columns == panel_width && !p.load_acc && !p.store_acc;
}

void multiply(const PanelProduct& p) {
  const bool is_short = is_short_stream(p);
  if (p.pairs)
    is_short ? stream_short<Isa::has_pairs>(p) : multiply_units<Isa::has_pairs>(p);
  else
    is_short ? stream_short<false>(p) : multiply_units<false>(p);
  if (p.stream) Isa::end_streams();
}
