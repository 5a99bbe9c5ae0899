// Activations of a tier, over Vec and elementwise_body.h of the including file. Formulas: docs/operators.md section 4; everything in float32,
// no NaN from finite inputs however large.

/// The numbers of the clamped kind.
struct GateParameters {
  Vec limit, alpha;
};

// The gated kinds are all value(gate) * up with value(x) = x / (1 + exp(-argument(x))), after changes to gate and up of their own.

struct Silu {
  PLAIT_LANES_INLINE static Vec gate(Vec x, const GateParameters&) { return x; }
  PLAIT_LANES_INLINE static Vec up(Vec x, const GateParameters&) { return x; }
  PLAIT_LANES_INLINE static Vec argument(Vec x, const GateParameters&) { return x; }
  PLAIT_LANES_INLINE static Vec argument_slope(Vec, const GateParameters&) { return broadcast(1.0F); }
  PLAIT_LANES_INLINE static Vec gate_gradient(Vec, Vec d, const GateParameters&) { return d; }
  PLAIT_LANES_INLINE static Vec up_gradient(Vec, Vec d, const GateParameters&) { return d; }
};

/// gate = min(gate, limit), up = clamp(up, -limit, limit) + 1, argument alpha * gate. No gradient where clamped.
struct ClampedSilu {
  PLAIT_LANES_INLINE static Vec gate(Vec x, const GateParameters& p) { return min_of(p.limit, x); }
  PLAIT_LANES_INLINE static Vec up(Vec x, const GateParameters& p) { return max_of(-p.limit, min_of(p.limit, x)) + broadcast(1.0F); }
  PLAIT_LANES_INLINE static Vec argument(Vec x, const GateParameters& p) { return p.alpha * x; }
  PLAIT_LANES_INLINE static Vec argument_slope(Vec, const GateParameters& p) { return p.alpha; }
  PLAIT_LANES_INLINE static Vec gate_gradient(Vec x, Vec d, const GateParameters& p) { return select(p.limit < x, broadcast(0.0F), d); }
  PLAIT_LANES_INLINE static Vec up_gradient(Vec x, Vec d, const GateParameters& p) {
    d = select(p.limit < x, broadcast(0.0F), d);
    return select(x < -p.limit, broadcast(0.0F), d);
  }
};

/// x/2 (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float linear = 0x1.988454p+0F;  // 2 sqrt(2/pi)
  static constexpr float cubic = 0x1.2444f2p-4F;   // 2 sqrt(2/pi) 0.044715
  PLAIT_LANES_INLINE static Vec gate(Vec x, const GateParameters&) { return x; }
  PLAIT_LANES_INLINE static Vec up(Vec x, const GateParameters&) { return x; }
  PLAIT_LANES_INLINE static Vec argument(Vec x, const GateParameters&) { return x * fma(broadcast(cubic), x * x, broadcast(linear)); }
  PLAIT_LANES_INLINE static Vec argument_slope(Vec x, const GateParameters&) {
    const Vec bound = broadcast(30.0F);  // beyond it the factor of this slope is 0, and x * x must stay finite
    x = max_of(-bound, min_of(bound, x));
    return fma(broadcast(3.0F * cubic), x * x, broadcast(linear));
  }
  PLAIT_LANES_INLINE static Vec gate_gradient(Vec, Vec d, const GateParameters&) { return d; }
  PLAIT_LANES_INLINE static Vec up_gradient(Vec, Vec d, const GateParameters&) { return d; }
};

/// Reads and writes (gate, up) pairs of a row of 2n columns, [gate | up] or interleaved. Which of them is asked per 16 columns, not by one
/// more template argument: that costs little beside exp and halves the code.
template <DType type>
struct PairColumns {
  int64_t n;
  bool interleaved;

  PLAIT_LANES_INLINE void read(const std::byte* h, int64_t i, int64_t count, Vec* gate, Vec* up) const {
    if (interleaved) {
      *gate = load<type>(h + 2 * i * size_of(type), 2 * count);
      *up = load<type>(h + (2 * i + 16) * size_of(type), 2 * count - 16);
      deinterleave(gate, up);
    } else {
      *gate = load<type>(h + i * size_of(type), count);
      *up = load<type>(h + (n + i) * size_of(type), count);
    }
  }
  PLAIT_LANES_INLINE void write(std::byte* h, int64_t i, int64_t count, Vec gate, Vec up) const {
    if (interleaved) {
      interleave(&gate, &up);
      store<type>(h + 2 * i * size_of(type), gate, 2 * count);
      store<type>(h + (2 * i + 16) * size_of(type), up, 2 * count - 16);
    } else {
      store<type>(h + i * size_of(type), gate, count);
      store<type>(h + (n + i) * size_of(type), up, count);
    }
  }
};

/// The arguments of a row's backward; see ElementwiseKernels::activation_backward.
struct BackwardRow {
  const std::byte* h;
  const std::byte* da;
  float w;
  std::byte* dh;
  std::byte* act_w;
};

template <typename Kind, DType type>
struct GatedRow {
  static void forward(const Activation& a, const std::byte* h, std::byte* act, int64_t n) {
    const GateParameters p{broadcast(a.limit), broadcast(a.alpha)};
    const PairColumns<type> columns{n, a.interleaved};
    for (int64_t i = 0; i < n; i += 16) {
      Vec gate, up;
      columns.read(h, i, n - i, &gate, &up);
      gate = Kind::gate(gate, p);
      Vec value = gate / (broadcast(1.0F) + exp(-Kind::argument(gate, p)));
      store<type>(act + i * size_of(type), value * Kind::up(up, p), n - i);
    }
  }

  static void backward(const Activation& a, const BackwardRow& row, int64_t n) {
    const GateParameters p{broadcast(a.limit), broadcast(a.alpha)};
    const PairColumns<type> columns{n, a.interleaved};
    const Vec w = broadcast(row.w), one = broadcast(1.0F), largest = broadcast(std::numeric_limits<float>::max());
    for (int64_t i = 0; i < n; i += 16) {
      Vec gate_in, up_in;
      columns.read(row.h, i, n - i, &gate_in, &up_in);
      Vec gate = Kind::gate(gate_in, p), up = Kind::up(up_in, p);
      Vec e = exp(-Kind::argument(gate, p));
      Vec value = gate / (one + e);
      Vec s = one / (one + e);            // sigmoid of the argument
      Vec rest = min_of(largest, e) * s;  // 1 - s without cancellation, and no 0 * infinity
      Vec slope = s * fma(gate * rest, Kind::argument_slope(gate, p), one);
      Vec g = w * load<type>(row.da + i * size_of(type), n - i);
      Vec dgate = Kind::gate_gradient(gate_in, g * up * slope, p);
      Vec dup = Kind::up_gradient(up_in, g * value, p);
      columns.write(row.dh, i, n - i, dgate, dup);
      if (row.act_w != nullptr) store<type>(row.act_w + i * size_of(type), w * rounded<type>(value * up), n - i);
    }
  }
};

/// relu(h)^2, ungated.
template <DType type>
struct Relu2Row {
  PLAIT_LANES_INLINE static Vec relu(Vec x) { return max_of(broadcast(0.0F), x); }

  static void forward(const Activation&, const std::byte* h, std::byte* act, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
      Vec x = relu(load<type>(h + i * size_of(type), n - i));
      store<type>(act + i * size_of(type), x * x, n - i);
    }
  }
  static void backward(const Activation&, const BackwardRow& row, int64_t n) {
    const Vec w = broadcast(row.w);
    for (int64_t i = 0; i < n; i += 16) {
      const int64_t at = i * size_of(type);
      Vec x = relu(load<type>(row.h + at, n - i));
      Vec g = w * load<type>(row.da + at, n - i);
      store<type>(row.dh + at, g * (x + x), n - i);
      if (row.act_w != nullptr) store<type>(row.act_w + at, w * rounded<type>(x * x), n - i);
    }
  }
};

template <DType type>
struct ActivationForward {
  static void run(const Activation* a, const std::byte* h, std::byte* act, int64_t n) {
    switch (a->kind) {
      case ActivationKind::swiglu:
        return GatedRow<Silu, type>::forward(*a, h, act, n);
      case ActivationKind::swiglu_clamped:
        return GatedRow<ClampedSilu, type>::forward(*a, h, act, n);
      case ActivationKind::geglu_tanh:
        return GatedRow<GeluTanh, type>::forward(*a, h, act, n);
      case ActivationKind::relu2:
        return Relu2Row<type>::forward(*a, h, act, n);
    }
  }
};
template <DType type>
struct ActivationBackward {
  static void run(const Activation* a, const BackwardRow* row, int64_t n) {
    if (is_absent(row->w)) return clear(*a, *row, n);
    switch (a->kind) {
      case ActivationKind::swiglu:
        return GatedRow<Silu, type>::backward(*a, *row, n);
      case ActivationKind::swiglu_clamped:
        return GatedRow<ClampedSilu, type>::backward(*a, *row, n);
      case ActivationKind::geglu_tanh:
        return GatedRow<GeluTanh, type>::backward(*a, *row, n);
      case ActivationKind::relu2:
        return Relu2Row<type>::backward(*a, *row, n);
    }
  }
  static void clear(const Activation& a, const BackwardRow& row, int64_t n) {
    std::memset(row.dh, 0, static_cast<size_t>(a.hidden_columns(n) * size_of(type)));
    if (row.act_w != nullptr) std::memset(row.act_w, 0, static_cast<size_t>(n * size_of(type)));
  }
};

void activation_forward_row(const Activation& a, DType type, const std::byte* h, std::byte* act, int64_t n) {
  for_type<ActivationForward>(type, &a, h, act, n);
}
void activation_backward_row(const Activation& a, DType type, const std::byte* h, const std::byte* da, float w, std::byte* dh, std::byte* act_w,
                             int64_t n) {
  const BackwardRow row{h, da, w, dh, act_w};
  for_type<ActivationBackward>(type, &a, &row, n);
}
