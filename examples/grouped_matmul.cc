// One matrix multiplication per group of rows: rows 0-1 by the first weight, row 2 by the second; the last row belongs to no group.
#include <array>
#include <cstdio>

#include "plait/plait.h"

int main() {
  auto context = plait::Context::create();
  if (!context.ok()) {
    std::fprintf(stderr, "%s\n", context.status().to_string().c_str());
    return plait::exit_code(context.status());
  }

  const std::array<float, 8> x = {1, 0, 0, 1, 1, 1, 7, 7};       // (4,2)
  const std::array<float, 8> weight = {1, 2, 3, 4, 5, 6, 7, 8};  // (2,2,2): [[1,2],[3,4]] and [[5,6],[7,8]]
  const std::array<int64_t, 2> rows_per_group = {2, 1};
  std::array<float, 8> y{};

  plait::Status status = plait::grouped_matmul(**context, plait::ConstTensorView(x.data(), plait::DType::f32, {4, 2}),
                                               plait::ConstTensorView(weight.data(), plait::DType::f32, {2, 2, 2}), rows_per_group,
                                               /*bias=*/{}, plait::TensorView(y.data(), plait::DType::f32, {4, 2}));
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return plait::exit_code(status);
  }
  for (size_t row = 0; row < 4; ++row) std::printf("%g %g\n", static_cast<double>(y[2 * row]), static_cast<double>(y[2 * row + 1]));
}
