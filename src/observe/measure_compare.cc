#include "observe/measure_compare.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/status_macros.h"
#include "observe/measure_gather.h"

namespace plait {
namespace {

double from_f16(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double magnitude = 0;
  if (exponent == 31)
    magnitude = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  else
    magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

bool same_shape(const ConstTensorView& a, const ConstTensorView& b) { return a.dtype == b.dtype && a.num_dims == b.num_dims && a.shape == b.shape; }

}  // namespace

ResultCopies::ResultCopies(std::span<const NamedResult> results) {
  for (const NamedResult& result : results) {
    auto n = static_cast<size_t>(result.view.num_bytes());
    bytes_.emplace_back(n);
    if (n > 0) std::memcpy(bytes_.back().data(), result.view.data, n);
    items_.push_back(result);
    items_.back().view.data = bytes_.back().data();
  }
}

double element(const ConstTensorView& view, int64_t flat) {
  const std::byte* p = view.data + flat * size_of(view.dtype);
  if (view.dtype == DType::f32) return static_cast<double>(load<float>(p));
  if (view.dtype == DType::f16) return from_f16(load<uint16_t>(p));
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(p)) << 16));
}

Difference compare_bits(const ConstTensorView& a, const ConstTensorView& b) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (!same_shape(a, b)) return {false, infinity, 0, 0};
  Difference difference;
  auto bytes = static_cast<size_t>(a.num_bytes());
  if (bytes == 0 || std::memcmp(a.data, b.data, bytes) == 0) return difference;
  auto width = static_cast<size_t>(size_of(a.dtype));
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    size_t at = static_cast<size_t>(i) * width;
    if (std::memcmp(a.data + at, b.data + at, width) == 0) continue;
    double va = element(a, i), vb = element(b, i);
    if (std::isnan(va) && std::isnan(vb)) continue;
    double distance = std::isnan(va) || std::isnan(vb) ? infinity : std::fabs(va - vb);
    if (difference.equal) difference.first = difference.largest = i;
    difference.equal = false;
    if (distance > difference.max_abs) {
      difference.max_abs = distance;
      difference.largest = i;
    }
  }
  return difference;
}

Result<std::vector<ResultDifference>> compare_results(Group& group, std::span<const NamedResult> results, const ResultCopies& copies) {
  std::vector<Difference> own;
  for (size_t i = 0; i < results.size(); ++i) own.push_back(compare_bits(results[i].view, copies.items()[i].view));
  PLAIT_ASSIGN_OR_RETURN(std::vector<Difference> all, gather<Difference>(group, "comparison", own));
  std::vector<ResultDifference> differences;
  for (size_t i = 0; i < results.size(); ++i) {
    ResultDifference worst{std::string(results[i].name), {}, -1};
    for (int rank = 0; rank < group.size(); ++rank) {
      const Difference& difference = all[static_cast<size_t>(rank) * results.size() + i];
      if (difference.equal || (worst.rank >= 0 && difference.max_abs <= worst.difference.max_abs)) continue;
      worst.difference = difference;
      worst.rank = rank;
    }
    differences.push_back(std::move(worst));
  }
  return differences;
}

}  // namespace plait
