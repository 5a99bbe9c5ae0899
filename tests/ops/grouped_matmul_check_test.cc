/// What the grouped matmuls refuse: types, shapes, overlapping memory; and what they must not refuse.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "ops/grouped_matmul_support.h"

namespace plait::test {
namespace {

using List = std::vector<int64_t>;

class GroupedMatmulCheck : public ::testing::Test {
 protected:
  void expect_error(const Status& status, std::initializer_list<const char*> parts) const {
    ASSERT_EQ(status.code(), StatusCode::invalid_argument) << status.to_string();
    for (const char* part : parts) EXPECT_NE(status.message().find(part), std::string::npos) << status.message() << "\nlacks " << part;
  }
  std::unique_ptr<Context> context_ = gmm_context();
};

TEST_F(GroupedMatmulCheck, ShapesAndTypes) {
  auto tensor = [](DType dtype, std::initializer_list<int64_t> shape) { return make_tensor(dtype, shape); };
  Tensor x = tensor(DType::bf16, {4, 3}), w = tensor(DType::bf16, {2, 3, 5}), y = tensor(DType::bf16, {4, 5});
  List list{2, 2};
  expect_error(gmm(*context_, tensor(DType::f32, {4, 3}), w, list, y), {"x is f32", "weight is bf16"});
  expect_error(gmm(*context_, tensor(DType::bf16, {4, 6}), w, list, y), {"6 columns", "3 rows"});
  expect_error(gmm(*context_, tensor(DType::bf16, {4}), w, list, y), {"x", "2 dimensions"});
  expect_error(gmm(*context_, tensor(DType::i32, {4, 3}), w, list, y), {"x", "f32, bf16 or f16"});
  expect_error(gmm(*context_, x, tensor(DType::bf16, {3, 5}), list, y), {"weight", "3 dimensions"});
  expect_error(gmm(*context_, x, w, list, tensor(DType::bf16, {4, 6})), {"y", "(4, 5)"});
  expect_error(gmm(*context_, x, w, list, tensor(DType::f16, {4, 5})), {"y is f16", "bf16", "f32"});
  expect_error(gmm(*context_, x, w, list, y, {}, tensor(DType::bf16, {2, 4})), {"bias", "(2, 5)"});
  expect_error(gmm(*context_, x, w, list, y, {}, tensor(DType::f16, {2, 5})), {"bias", "bf16 or f32"});
  expect_error(gmm(*context_, tensor(DType::bf16, {4, 0}), tensor(DType::bf16, {2, 0, 5}), list, y), {"dimension 1 is 0"});
  expect_error(gmm(*context_, x, tensor(DType::bf16, {2, 3, 0}), list, tensor(DType::bf16, {4, 0})), {"dimension 2 is 0"});
  expect_error(gmm(*context_, x, w, {1, 1, 1}, y), {"3 counts", "2 needed"});

  Tensor dy = tensor(DType::bf16, {4, 5}), dw = tensor(DType::bf16, {2, 3, 5});
  expect_error(grouped_matmul_k(*context_, x, tensor(DType::bf16, {3, 5}), list, dw, false), {"4 and 3 rows"});
  expect_error(grouped_matmul_k(*context_, x, dy, list, dw, true), {"dw is bf16", "f32", "added to"});
  expect_error(grouped_matmul_k(*context_, x, dy, list, tensor(DType::bf16, {2, 5, 3}), false), {"dw", "(2, 3, 5)"});
  expect_error(grouped_bias_gradient(*context_, dy, list, tensor(DType::bf16, {2, 4}), false), {"dbias", "(2, 5)"});
  expect_error(grouped_matmul_backward(*context_, dy, x, w, list, {.dw = tensor(DType::bf16, {3, 3, 5})}), {"dw", "(2, 3, 5)"});
  expect_error(grouped_matmul_backward(*context_, dy, x, w, list, {.dx = tensor(DType::bf16, {4, 5})}), {"dx", "(4, 3)"});
}

TEST_F(GroupedMatmulCheck, ResultsThatShareMemory) {
  Tensor x = random_tensor(DType::f32, {6, 6}, 1);
  Tensor weight = random_tensor(DType::f32, {2, 6, 6}, 2);
  expect_error(gmm(*context_, x, weight, {3, 3}, x), {"y", "shares memory with x"});
  Tensor shifted{x.buffer, x.view.slice(1, 4)};
  Tensor first{x.buffer, x.view.slice(0, 3)};
  expect_error(gmm(*context_, first, weight, {1, 2}, shifted), {"shares memory with x"});
  Tensor inside_weight{weight.buffer, weight.view[1]};
  expect_error(gmm(*context_, x, weight, {3, 3}, inside_weight), {"shares memory with weight"});
  Tensor rows_apart{x.buffer, x.view.slice(3, 6)};
  EXPECT_TRUE(gmm(*context_, first, weight, {1, 2}, rows_apart).ok());
  expect_error(grouped_matmul_backward(*context_, x, x, weight, List{3, 3}, {.dx = make_tensor(DType::f32, {6, 6}), .dw = weight}),
               {"dw", "shares memory with weight"});
}

TEST_F(GroupedMatmulCheck, ColumnsOfOneBufferAreApart) {
  Tensor base = integer_tensor(DType::bf16, {4, 12}, 1);
  auto columns = [&](int64_t begin, int64_t end) {
    TensorView v = base.view;
    v.data += begin * 2;
    v.shape[1] = end - begin;
    return Tensor{base.buffer, v};
  };
  Tensor weight = integer_tensor(DType::bf16, {1, 5, 7}, 2);
  Tensor expected = make_tensor(DType::bf16, {4, 7});
  ASSERT_TRUE(gmm(*context_, columns(0, 5), weight, {4}, expected).ok());
  expect_error(gmm(*context_, columns(0, 5), weight, {4}, columns(4, 11)), {"shares memory"});
  ASSERT_TRUE(gmm(*context_, columns(0, 5), weight, {4}, columns(5, 12)).ok());
  EXPECT_BITS_EQ(columns(5, 12).view, expected.view);
}

TEST_F(GroupedMatmulCheck, ResultsMustNotOverlapThemselves) {
  Tensor x = random_tensor(DType::f32, {3, 4}, 1);
  Tensor weight = random_tensor(DType::f32, {1, 4, 2}, 2);
  Tensor memory = make_tensor(DType::f32, {64});
  auto view = [&](int64_t row_stride, int64_t column_stride) {
    TensorView v(memory.view.data, DType::f32, {3, 2});
    v.strides[0] = row_stride;
    v.strides[1] = column_stride;
    return Tensor{memory.buffer, v};
  };
  Tensor expected = make_tensor(DType::f32, {3, 2});
  ASSERT_TRUE(gmm(*context_, x, weight, {3}, expected).ok());
  for (auto [rows, columns] : {std::pair{0, 1}, {2, 0}, {1, 1}, {1, 2}, {3, 6}, {-1, 1}}) {
    expect_error(gmm(*context_, x, weight, {3}, view(rows, columns)), {"y", "may lie on each other"});
  }
  for (auto [rows, columns] : {std::pair{2, 1}, {1, 3}, {2, 3}, {3, 2}, {7, 1}, {5, 11}}) {  // (2, 3): interleaved, yet apart
    Tensor y = view(rows, columns);
    ASSERT_TRUE(gmm(*context_, x, weight, {3}, y).ok()) << rows << ", " << columns;
    EXPECT_BITS_EQ(y.view, expected.view);
  }
}

/// A block of memory that ends right before an inaccessible page.
class GuardedBlock {
 public:
  explicit GuardedBlock(int64_t bytes) : bytes_(bytes), page_(sysconf(_SC_PAGESIZE)) {
    data_bytes_ = (bytes + page_ - 1) / page_ * page_;
    base_ =
        static_cast<std::byte*>(mmap(nullptr, static_cast<size_t>(data_bytes_ + page_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + data_bytes_, static_cast<size_t>(page_), PROT_NONE);
  }
  ~GuardedBlock() { munmap(base_, static_cast<size_t>(data_bytes_ + page_)); }
  GuardedBlock(const GuardedBlock&) = delete;
  GuardedBlock& operator=(const GuardedBlock&) = delete;
  std::byte* data() const { return base_ + data_bytes_ - bytes_; }

 private:
  int64_t bytes_, page_, data_bytes_ = 0;
  std::byte* base_ = nullptr;
};

TEST_F(GroupedMatmulCheck, ReadsNothingBeyondTheOperands) {
  for (int64_t k = 1; k <= 40; ++k) {
    for (int64_t n = 1; n <= 40; n += k % 3 + 1) {
      DType dtype = (k + n) % 2 == 0 ? DType::bf16 : DType::f32;
      List counts{1, 2};
      Tensor x = random_tensor(dtype, {3, k}, 1), stored = random_tensor(dtype, {2, n, k}, 2), dy = random_tensor(dtype, {3, n}, 3);
      GuardedBlock guarded_x(x.view.num_bytes()), guarded_w(stored.view.num_bytes()), guarded_dy(dy.view.num_bytes());
      auto guard = [](const Tensor& t, const GuardedBlock& block) {
        std::memcpy(block.data(), t.view.data, static_cast<size_t>(t.view.num_bytes()));
        TensorView v = t.view;
        v.data = block.data();
        return v;
      };
      ConstTensorView gx = guard(x, guarded_x), gw = guard(stored, guarded_w), gdy = guard(dy, guarded_dy);
      Tensor y = make_tensor(dtype, {3, n}), loop = make_tensor(dtype, {3, n});
      ASSERT_TRUE(grouped_matmul(*context_, gx, gw.transposed(1, 2), counts, {}, y).ok());
      ASSERT_TRUE(grouped_matmul(*context_, x, stored.view.transposed(1, 2), counts, {}, loop, {.fused = false}).ok());
      ASSERT_EQ(bit_difference(y, loop), "") << k << " x " << n;
      Tensor dx = make_tensor(dtype, {3, k}), dw = make_tensor(dtype, {2, k, n}), dbias = make_tensor(dtype, {2, n});
      ASSERT_TRUE(grouped_matmul_backward(*context_, gdy, gx, gw.transposed(1, 2), counts, {dx, dw, dbias}).ok());
    }
  }
}

/// Rows beyond the list lie in a page that cannot be read; the rows before it take the direct and the copying path.
TEST_F(GroupedMatmulCheck, TailRowsAreNeverRead) {
  constexpr int64_t k = 6, n = 4;
  Tensor weight = integer_tensor(DType::f32, {1, k, n}, 1);
  for (int64_t column_stride : {1, 2}) {
    GuardedBlock block(3 * column_stride * k * size_of(DType::f32));
    TensorView x(block.data(), DType::f32, {3, k});
    x.strides = {column_stride * k, column_stride};
    for (int64_t i = 0; i < 3 * k; ++i) set(x, i, static_cast<double>(i % 5));
    Tensor expected = make_tensor(DType::f32, {3, n});
    ASSERT_TRUE(grouped_matmul(*context_, x, weight, List{3}, {}, expected).ok());
    x.shape[0] = 5;
    Tensor y = make_tensor(DType::f32, {5, n}), dw = make_tensor(DType::f32, {1, k, k}), dbias = make_tensor(DType::f32, {1, k});
    ASSERT_TRUE(grouped_matmul(*context_, x, weight, List{3}, {}, y).ok());
    EXPECT_BITS_EQ(y.view.slice(0, 3), expected.view);
    ASSERT_TRUE(grouped_matmul_k(*context_, x, x, List{3}, dw, false).ok());
    ASSERT_TRUE(grouped_bias_gradient(*context_, x, List{3}, dbias, false).ok());
    Tensor dx = make_tensor(DType::f32, {5, n});
    ASSERT_TRUE(grouped_matmul_backward(*context_, x, y, weight.view.transposed(1, 2), List{3}, {.dx = dx}).ok());
  }
}

}  // namespace
}  // namespace plait::test
