// The bits of fixed products, stored: the same on every tier of every architecture, and in every later version.

#include <gtest/gtest.h>

#include "kernels/gemm_problem.h"

namespace plait::test {
namespace {

/// FNV-1a over the bytes of a tensor.
uint64_t digest(const Tensor& t) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (int64_t i = 0; i < t.view.num_bytes(); ++i) {
    hash = (hash ^ static_cast<uint64_t>(t.view.data[i])) * 0x100000001b3U;
  }
  return hash;
}

struct Expected {
  DType in, out;
  uint64_t forward, gradient;
};
constexpr Expected all_expected[] = {
    {DType::f32, DType::f32, 0x20595a89dc948780U, 0x9ec8fb57988df8c4U},
    {DType::bf16, DType::bf16, 0x439be98d664076c5U, 0xb6a5b1be0650dcd6U},
    {DType::bf16, DType::f32, 0x3241c650f1255ea2U, 0x9eb4387ac97d63bcU},
    {DType::f16, DType::f16, 0x3e129255687e3bb6U, 0xd28551aaf5a25e4eU},
};

TEST(GemmDigest, StoredBitsHoldOnEveryTier) {
  std::vector<const Context*> contexts = vector_contexts();
  contexts.push_back(&reference_context());
  for (const Context* context : contexts) {
    for (const Expected& expected : all_expected) {
      const std::string where = std::string(name(context->tier())) + " " + std::string(name(expected.in)) + " to " + std::string(name(expected.out));
      for (Storage storage : {Storage::kn, Storage::nk}) {
        MCase c{
            .in = expected.in, .out = expected.out, .k = 601, .n = 75, .counts = {9, 0, 14}, .storage = storage, .fill = Fill::wide, .bias = true};
        EXPECT_EQ(digest(run(*context, c)), expected.forward) << where << std::hex << " forward 0x" << digest(run(*context, c));
        KCase d{.in = expected.in, .out = expected.out, .k = 75, .n = 40, .counts = {301, 0, 14}, .storage = storage, .fill = Fill::wide};
        EXPECT_EQ(digest(run(*context, d)), expected.gradient) << where << std::hex << " gradient 0x" << digest(run(*context, d));
      }
    }
  }
}

}  // namespace
}  // namespace plait::test
