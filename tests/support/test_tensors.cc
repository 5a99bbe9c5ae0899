#include "support/test_tensors.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace plait::test {
namespace {

std::byte* element(const ConstTensorView& t, int64_t flat) {
  int64_t offset = 0;
  for (int d = t.num_dims - 1; d >= 0; --d) {
    offset += flat % t.shape[d] * t.strides[d];
    flat /= t.shape[d];
  }
  return const_cast<std::byte*>(t.data) + offset * size_of(t.dtype);
}

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

uint16_t to_bf16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double from_f16(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  double mantissa = bits & 1023;
  double sign = bits >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

uint16_t to_f16(double value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (magnitude >= 65520) return sign | 0x7c00;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  int ulp = std::max(exponent - 11, -24);
  double rounded = std::nearbyint(std::ldexp(magnitude, -ulp));  // the default mode: nearest even
  if (ulp == -24) return sign | static_cast<uint16_t>(rounded);
  if (rounded == 2048) {
    rounded = 1024;
    ++ulp;
  }
  return sign | static_cast<uint16_t>((ulp + 25) << 10 | (static_cast<int>(rounded) - 1024));
}

uint64_t bits_of(const ConstTensorView& t, int64_t i) {
  const std::byte* p = element(t, i);
  switch (size_of(t.dtype)) {
    case 1:
      return load<uint8_t>(p);
    case 2:
      return load<uint16_t>(p);
    case 4:
      return load<uint32_t>(p);
    default:
      return load<uint64_t>(p);
  }
}

}  // namespace

Tensor make_tensor(DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  auto bytes = static_cast<size_t>(view.num_bytes());
  Buffer buffer(new std::byte[bytes + 1], std::default_delete<std::byte[]>());
  std::memset(buffer.get(), 0xff, bytes + 1);
  return {buffer, TensorView(buffer.get(), dtype, shape)};
}

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15U;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}
int64_t Random::below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }
float Random::uniform(float low, float high) { return low + (high - low) * static_cast<float>(next() >> 40) * 0x1p-24F; }

double get(const ConstTensorView& t, int64_t i) {
  const std::byte* p = element(t, i);
  switch (t.dtype) {
    case DType::f32:
      return load<float>(p);
    case DType::bf16:
      return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(p)) << 16);
    case DType::f16:
      return from_f16(load<uint16_t>(p));
    case DType::i32:
      return load<int32_t>(p);
    case DType::i64:
      return static_cast<double>(load<int64_t>(p));
    case DType::u8:
      return load<uint8_t>(p);
  }
  return 0;
}

void set(const TensorView& t, int64_t i, double value) {
  std::byte* p = element(t, i);
  auto put = [p](auto v) { std::memcpy(p, &v, sizeof v); };
  switch (t.dtype) {
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::bf16:
      return put(to_bf16(static_cast<float>(value)));
    case DType::f16:
      return put(to_f16(value));
    case DType::i32:
      return put(static_cast<int32_t>(value));
    case DType::i64:
      return put(static_cast<int64_t>(value));
    case DType::u8:
      return put(static_cast<uint8_t>(value));
  }
}

Tensor random_tensor(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed, float low, float high) {
  Tensor t = make_tensor(dtype, shape);
  Random random(seed);
  for (int64_t i = 0; i < t.view.num_elements(); ++i) set(t, i, random.uniform(low, high));
  return t;
}

Tensor integer_tensor(DType dtype, std::initializer_list<int64_t> shape, uint64_t seed, int low, int high) {
  Tensor t = make_tensor(dtype, shape);
  Random random(seed);
  for (int64_t i = 0; i < t.view.num_elements(); ++i) set(t, i, static_cast<double>(low + random.below(high - low + 1)));
  return t;
}

Tensor tensor_of(DType dtype, std::initializer_list<int64_t> shape, const std::vector<double>& values) {
  Tensor t = make_tensor(dtype, shape);
  for (int64_t i = 0; i < t.view.num_elements(); ++i) set(t, i, values.at(static_cast<size_t>(i)));
  return t;
}

std::vector<double> to_vector(const ConstTensorView& t) {
  std::vector<double> values;
  for (int64_t i = 0; i < t.num_elements(); ++i) values.push_back(get(t, i));
  return values;
}

std::string bit_difference(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.dtype != b.dtype || a.num_dims != b.num_dims || a.shape != b.shape) return "shapes or types differ";
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    bool both_nan = is_floating(a.dtype) && std::isnan(get(a, i)) && std::isnan(get(b, i));
    if (bits_of(a, i) != bits_of(b, i) && !both_nan) {
      return "element " + std::to_string(i) + ": " + std::to_string(get(a, i)) + " against " + std::to_string(get(b, i));
    }
  }
  return "";
}

}  // namespace plait::test
