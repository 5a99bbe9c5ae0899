// The row functions of a tier, written once over Vec (16 lanes) of the including file. Included inside its anonymous namespace and target
// region, after vec_*.h. No lambdas in here: compilers do not carry a target region into them.

/// Loads and stores by element type. A load keeps denormals: arithmetic and comparisons take them as zero anyway, and what only passes a
/// value on calls flush(). A partial load gives +0 in the lanes at and after `count`, without touching their memory.
template <DType type>
PLAIT_LANES_INLINE Vec load(const std::byte* p) {
  if constexpr (type == DType::f32) return load_f32(p);
  if constexpr (type == DType::bf16) return load_bf16(p);
  if constexpr (type == DType::f16) return load_f16(p);
}
template <DType type>
PLAIT_LANES_INLINE void store(std::byte* p, Vec a) {
  if constexpr (type == DType::f32) store_f32(p, a);
  if constexpr (type == DType::bf16) store_bf16(p, a);
  if constexpr (type == DType::f16) store_f16(p, a);
}
template <DType type>
PLAIT_LANES_INLINE Vec load(const std::byte* p, int64_t count) {
  if (count >= 16) return load<type>(p);
  std::byte lanes[16 * size_of(type)] = {};
  if (count > 0) std::memcpy(lanes, p, static_cast<size_t>(count * size_of(type)));
  return load<type>(lanes);
}
template <DType type>
PLAIT_LANES_INLINE void store(std::byte* p, Vec a, int64_t count) {
  if (count >= 16) return store<type>(p, a);
  std::byte lanes[16 * size_of(type)];
  store<type>(lanes, a);
  if (count > 0) std::memcpy(p, lanes, static_cast<size_t>(count * size_of(type)));
}
/// `a` as it reads after a store.
template <DType type>
PLAIT_LANES_INLINE Vec rounded(Vec a) {
  if constexpr (type == DType::f32) return a;
  std::byte lanes[16 * size_of(type)];
  store<type>(lanes, a);
  return load<type>(lanes);
}

PLAIT_LANES_INLINE const std::byte* bytes(const float* x) { return reinterpret_cast<const std::byte*>(x); }
PLAIT_LANES_INLINE std::byte* bytes(float* x) { return reinterpret_cast<std::byte*>(x); }

/// Calls Function<type>::run(arguments...) for a floating type known at run time.
template <template <DType> class Function, typename... Arguments>
PLAIT_LANES_INLINE auto for_type(DType type, Arguments... arguments) {
  if (type == DType::bf16) return Function<DType::bf16>::run(arguments...);
  if (type == DType::f16) return Function<DType::f16>::run(arguments...);
  return Function<DType::f32>::run(arguments...);
}

// Row functions of the form y[i] = op(x[i]) and y[i] = op(x[i], y[i]).

template <DType in, DType out, typename Op>
PLAIT_LANES_INLINE void map_row(Op op, const std::byte* x, std::byte* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store<out>(y + i * size_of(out), op(load<in>(x + i * size_of(in), n - i)), n - i);
}
template <DType in, typename Op>
PLAIT_LANES_INLINE void update_row(Op op, const std::byte* x, float* acc, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    Vec y = op(load<in>(x + i * size_of(in), n - i), load<DType::f32>(bytes(acc + i), n - i));
    store<DType::f32>(bytes(acc + i), y, n - i);
  }
}

struct Flush {
  PLAIT_LANES_INLINE Vec operator()(Vec x) const { return flush(x); }
};
struct Exp {
  PLAIT_LANES_INLINE Vec operator()(Vec x) const { return exp(x); }
};
struct Log {
  PLAIT_LANES_INLINE Vec operator()(Vec x) const { return log(x); }
};
struct Sigmoid {
  PLAIT_LANES_INLINE Vec operator()(Vec x) const { return sigmoid(x); }
};
struct Scale {
  Vec w;
  PLAIT_LANES_INLINE Vec operator()(Vec x) const { return w * x; }
  PLAIT_LANES_INLINE Vec operator()(Vec x, Vec acc) const { return acc + w * x; }
};
struct Add {
  PLAIT_LANES_INLINE Vec operator()(Vec x, Vec acc) const { return acc + x; }
};

template <DType type>
struct LoadRow {
  static void run(const std::byte* x, float* y, int64_t n) { map_row<type, DType::f32>(Flush{}, x, bytes(y), n); }
};
template <DType type>
struct StoreRow {
  static void run(const float* x, std::byte* y, int64_t n) { map_row<DType::f32, type>(Flush{}, bytes(x), y, n); }
};
template <DType type>
struct ScaleRow {
  static void run(float w, const std::byte* x, float* out, int64_t n) { map_row<type, DType::f32>(Scale{broadcast(w)}, x, bytes(out), n); }
};
template <DType type>
struct ScaleAddRow {
  static void run(float w, const std::byte* x, float* acc, int64_t n) { update_row<type>(Scale{broadcast(w)}, x, acc, n); }
};
template <DType type>
struct AddRow {
  static void run(const std::byte* x, float* acc, int64_t n) { update_row<type>(Add{}, x, acc, n); }
};

void load_row(DType type, const std::byte* x, float* y, int64_t n) { for_type<LoadRow>(type, x, y, n); }
void store_row(DType type, const float* x, std::byte* y, int64_t n) { for_type<StoreRow>(type, x, y, n); }
void exp_row(const float* x, float* y, int64_t n) { map_row<DType::f32, DType::f32>(Exp{}, bytes(x), bytes(y), n); }
void log_row(const float* x, float* y, int64_t n) { map_row<DType::f32, DType::f32>(Log{}, bytes(x), bytes(y), n); }
void sigmoid_row(const float* x, float* y, int64_t n) { map_row<DType::f32, DType::f32>(Sigmoid{}, bytes(x), bytes(y), n); }
void scale_row(DType type, float w, const std::byte* x, float* out, int64_t n) { for_type<ScaleRow>(type, w, x, out, n); }
void scale_add_row(DType type, float w, const std::byte* x, float* acc, int64_t n) { for_type<ScaleAddRow>(type, w, x, acc, n); }
void add_row(DType type, const std::byte* x, float* acc, int64_t n) { for_type<AddRow>(type, x, acc, n); }

// Reductions. A lane's accumulator is never -0, so the +0 of a partial load changes nothing.

float sum_row(const float* x, int64_t n) {
  Vec acc = broadcast(0.0F);
  for (int64_t i = 0; i < n; i += 16) acc = acc + load<DType::f32>(bytes(x + i), n - i);
  return sum_lanes(acc);
}
float max_row(const float* x, int64_t n) {
  Vec acc = flush(broadcast(x[0]));  // lanes beyond a partial load compare with it
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) acc = max_of(flush(load_f32(bytes(x + i))), acc);
  if (i == n) return max_lanes(acc);
  float lanes[16];
  for (int l = 0; l < 16; ++l) lanes[l] = x[i + l < n ? i + l : 0];
  return max_lanes(max_of(flush(load_f32(bytes(lanes))), acc));
}
template <DType type>
struct DotRow {
  static float run(const std::byte* a, const std::byte* b, int64_t n) {
    float sum = 0.0F;
    for (int64_t block = 0; block < n; block += 64) sum = block_sum(a, b, block, n, sum);
    return sum;
  }
  PLAIT_LANES_INLINE static float block_sum(const std::byte* a, const std::byte* b, int64_t begin, int64_t n, float sum) {
    Vec acc = broadcast(0.0F);
    for (int64_t i = begin; i < begin + 64 && i < n; i += 16) {
      acc = fma(load<type>(a + i * size_of(type), n - i), load<type>(b + i * size_of(type), n - i), acc);
    }
    return add_scalars(sum, sum_lanes(acc));
  }
};
float dot_row(DType type, const std::byte* a, const std::byte* b, int64_t n) { return for_type<DotRow>(type, a, b, n); }

// Sums of rows: the list of steps is walked once per block of columns. The sum in work is in registers, those that wait in the first cache.

/// Columns [col, col + 16 * width) of a row, of the last Vec only `last_count` lanes.
template <int width>
struct ColumnBlock {
  int64_t col;
  int64_t last_count;

  PLAIT_LANES_INLINE int64_t count(int i) const { return i + 1 < width ? 16 : last_count; }
  template <DType type>
  PLAIT_LANES_INLINE void load_term(const SumStep& step, Vec* term) const {
    const std::byte* p = step.row + col * size_of(type);
    const Vec weight = broadcast(step.weight);
    PLAIT_UNROLL
    for (int i = 0; i < width; ++i) {
      term[i] = load<type>(p + i * 16 * size_of(type), count(i));
      if (step.scaled) term[i] = weight * term[i];
    }
  }
  PLAIT_LANES_INLINE void load_any_term(const SumStep& step, Vec* term) const {
    if (step.type == DType::bf16) return load_term<DType::bf16>(step, term);
    if (step.type == DType::f16) return load_term<DType::f16>(step, term);
    load_term<DType::f32>(step, term);
  }
  template <DType type>
  PLAIT_LANES_INLINE void store_sum(std::byte* out, const Vec* sum) const {
    PLAIT_UNROLL
    for (int i = 0; i < width; ++i) store<type>(out + (col + 16 * i) * size_of(type), flush(sum[i]), count(i));  // flush: one term alone
  }
};
template <int width>
PLAIT_LANES_INLINE void copy_block(const Vec* from, Vec* to) {
  PLAIT_UNROLL
  for (int i = 0; i < width; ++i) to[i] = from[i];
}
template <int width>
PLAIT_LANES_INLINE void add_block(const Vec* left, const Vec* right, Vec* sum) {
  PLAIT_UNROLL
  for (int i = 0; i < width; ++i) sum[i] = left[i] + right[i];
}

template <int width>
PLAIT_LANES_INLINE void sum_block(const SumStep* steps, int64_t num_steps, DType out_type, std::byte* out, ColumnBlock<width> block) {
  Vec top[width], term[width], waiting[max_sum_depth][width];
  if (num_steps > 0) block.load_any_term(steps[0], top);
  if (num_steps == 0) {
    PLAIT_UNROLL
    for (int i = 0; i < width; ++i) top[i] = broadcast(0.0F);
  }
  int depth = 0;
  for (const SumStep* step = steps + 1; step < steps + num_steps; ++step) {
    block.load_any_term(*step, term);
    int merges = step->merges;
    if (step->joins || merges > 0) {  // pushing and merging at once is adding
      add_block<width>(top, term, top);
      if (!step->joins) --merges;
    } else {
      copy_block<width>(top, waiting[depth++]);
      copy_block<width>(term, top);
    }
    for (; merges > 0; --merges) add_block<width>(waiting[--depth], top, top);
  }
  if (out_type == DType::bf16) return block.template store_sum<DType::bf16>(out, top);
  if (out_type == DType::f16) return block.template store_sum<DType::f16>(out, top);
  block.template store_sum<DType::f32>(out, top);
}
void sum_rows(const SumStep* steps, int64_t num_steps, DType out_type, std::byte* out, int64_t n) {
  int64_t col = 0;
  for (; col + 64 <= n; col += 64) sum_block<4>(steps, num_steps, out_type, out, {col, 16});
  for (; col < n; col += 16) sum_block<1>(steps, num_steps, out_type, out, {col, n - col});
}
