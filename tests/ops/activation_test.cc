/// activation_forward and activation_backward: rows of any stride, any threads, weights per row, names, errors.

#include "plait/activation.h"

#include <gtest/gtest.h>

#include "base/float_mode.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_set.h"
#include "ops/grouped_matmul_support.h"
#include "ops/permute_support.h"

namespace plait::test {
namespace {

constexpr ActivationKind all_kinds[] = {ActivationKind::swiglu, ActivationKind::swiglu_clamped, ActivationKind::geglu_tanh, ActivationKind::relu2};

TEST(ActivationOp, EveryRowHasTheKernelsBits) {
  constexpr int64_t num_rows = 53, columns = 45;
  for (int threads : {1, 2, 8}) {
    auto context = permute_context(threads);
    const auto& elementwise = *context->kernels().elementwise;
    for (ActivationKind kind : all_kinds) {
      Activation a{.kind = kind};
      int64_t hidden = a.hidden_columns(columns);
      Tensor h = random_tensor(DType::bf16, {num_rows, hidden}, 1, -4.0F, 4.0F), da = random_tensor(DType::bf16, {num_rows, columns}, 2);
      Tensor weights = random_tensor(DType::f32, {num_rows}, 3);
      set(weights, 7, 0);
      Tensor act = make_tensor(DType::bf16, {num_rows, columns}), dh = make_tensor(DType::bf16, {num_rows, hidden});
      Tensor act_w = make_tensor(DType::bf16, {num_rows, columns});
      for (int64_t i = 0; i < num_rows; ++i) {
        FloatMode mode;
        elementwise.activation_forward(a, DType::bf16, h.view.at(i), act.view.at(i), columns);
        elementwise.activation_backward(a, DType::bf16, h.view.at(i), da.view.at(i), weights.as<float>()[i], dh.view.at(i), act_w.view.at(i),
                                        columns);
      }
      for (Layout in : all_layouts) {
        for (Layout out : all_layouts) {
          Tensor act2 = blank_in_layout(DType::bf16, {num_rows, columns}, out), dh2 = blank_in_layout(DType::bf16, {num_rows, hidden}, out);
          Tensor act_w2 = blank_in_layout(DType::bf16, {num_rows, columns}, in);
          ASSERT_TRUE(activation_forward(*context, a, in_layout(h, in), act2).ok());
          EXPECT_BITS_EQ(act2.view, act.view);
          ASSERT_TRUE(activation_backward(*context, a, in_layout(h, in), in_layout(da, out), weights, dh2, act_w2).ok());
          EXPECT_BITS_EQ(dh2.view, dh.view);
          EXPECT_BITS_EQ(act_w2.view, act_w.view);
        }
      }
    }
  }
}

TEST(ActivationOp, GradientsOfStrideZero) {
  auto context = permute_context();
  Activation a{.kind = ActivationKind::relu2};
  Tensor h = tensor_of(DType::f32, {2, 2}, {1, -2, 3, 4}), one = tensor_of(DType::f32, {1}, {0.5}), dh = make_tensor(DType::f32, {2, 2});
  ConstTensorView da = one;
  da.num_dims = 2;
  da.shape = {2, 2};
  da.strides = {0, 0};
  ASSERT_TRUE(activation_backward(*context, a, h, da, {}, dh, {}).ok());
  EXPECT_EQ(to_vector(dh), (std::vector<double>{1, 0, 3, 4}));
}

TEST(ActivationOp, NoRows) {
  auto context = permute_context();
  Activation a;
  TensorView h(nullptr, DType::bf16, {0, 6}), act(nullptr, DType::bf16, {0, 3});
  EXPECT_TRUE(activation_forward(*context, a, h, act).ok());
  EXPECT_TRUE(activation_backward(*context, a, h, act, TensorView(nullptr, DType::f32, {0}), h, act).ok());
}

TEST(ActivationOp, Names) {
  for (ActivationKind kind : all_kinds) {
    Result<ActivationKind> parsed = parse_activation(name(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  Result<ActivationKind> unknown = parse_activation("swish");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("\"swish\""), std::string::npos);
  EXPECT_NE(unknown.status().message().find("swiglu, swiglu_clamped, geglu_tanh, relu2"), std::string::npos) << unknown.status().message();
}

TEST(ActivationOp, ErrorsNameTheShapes) {
  auto context = permute_context();
  Activation a;
  auto fails_with = [](const Status& status, const char* text) {
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.to_string();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  Tensor h = make_tensor(DType::f32, {2, 6}), act = make_tensor(DType::f32, {2, 3});
  fails_with(activation_forward(*context, a, h, make_tensor(DType::f32, {2, 6})), "12 columns of h");
  fails_with(activation_forward(*context, {.kind = ActivationKind::relu2}, h, act), "relu2");
  fails_with(activation_forward(*context, a, h, make_tensor(DType::f32, {3, 3})), "equal rows");
  fails_with(activation_forward(*context, a, h, make_tensor(DType::bf16, {2, 3})), "act is bf16, h is f32");
  fails_with(activation_forward(*context, a, make_tensor(DType::i32, {2, 6}), make_tensor(DType::i32, {2, 3})), "floating");
  fails_with(activation_forward(*context, a, h.view[0], act), "matrices");
  fails_with(activation_backward(*context, a, h, act, {}, act, {}), "dh is f32 (2, 3)");
  fails_with(activation_backward(*context, a, h, act, {}, h, make_tensor(DType::f32, {2, 2})), "act_w is f32 (2, 2)");
  fails_with(activation_backward(*context, a, h, act, make_tensor(DType::f32, {3}), h, {}), "f32 (2)");
}

}  // namespace
}  // namespace plait::test
