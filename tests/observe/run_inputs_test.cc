#include "observe/inputs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <set>

#include "observe/inputs_file.h"
#include "run_support.h"
#include "support/test_tensors.h"

namespace plait {
namespace {

using test::TemporaryFile;

std::string npy(const std::string& descr, const std::string& shape, const std::string& data, const std::string& order = "False") {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': (" + shape + "), }";
  header.resize((header.size() + 10 + 64) / 64 * 64 - 11, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 255);
  file += static_cast<char>(header.size() >> 8);
  return file + header + data;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string safetensors(const std::string& header, const std::string& data) {
  uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
}

std::vector<float> counting(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

void expect_refused(const std::string& path, const std::string& part) {
  auto file = open_array_file(path);
  ASSERT_FALSE(file.ok()) << part;
  EXPECT_EQ(file.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(file.status().message().find(path), std::string::npos) << file.status().message();
  EXPECT_NE(file.status().message().find(part), std::string::npos) << file.status().message();
}

TEST(Npy, ReadsRowsAndWraps) {
  TemporaryFile file("a.npy", npy("<f4", "3, 2", bytes_of(counting(6))));
  auto array = open_array_file(file.path());
  ASSERT_TRUE(array.ok()) << array.status().to_string();
  EXPECT_EQ(array->arrays[0].shape, (std::vector<int64_t>{3, 2}));
  std::vector<float> rows(10);
  ASSERT_TRUE(array->read_rows(array->arrays[0], 2, 5, reinterpret_cast<std::byte*>(rows.data())).ok());
  EXPECT_EQ(rows, (std::vector<float>{4, 5, 0, 1, 2, 3, 4, 5, 0, 1}));
}

TEST(Npy, TypesAndVersions) {
  const std::pair<const char*, DType> types[] = {
      {"<f2", DType::f16}, {"bfloat16", DType::bf16}, {"<V2", DType::bf16}, {"<i4", DType::i32}, {"<i8", DType::i64}};
  for (auto [descr, dtype] : types) {
    TemporaryFile file("b.npy", npy(descr, "1, 1", std::string(static_cast<size_t>(size_of(dtype)), '\1')));
    auto array = open_array_file(file.path());
    ASSERT_TRUE(array.ok()) << descr << array.status().to_string();
    EXPECT_EQ(array->arrays[0].dtype, dtype);
  }
  std::string second = npy("<f4", "2,", bytes_of(counting(2)));
  second[6] = 2;
  second.insert(10, std::string(2, '\0'));
  TemporaryFile file("c.npy", second);
  auto array = open_array_file(file.path());
  ASSERT_TRUE(array.ok()) << array.status().to_string();
  EXPECT_EQ(array->arrays[0].shape, (std::vector<int64_t>{2}));
}

TEST(Npy, MalformedFilesAreErrors) {
  expect_refused(testing::TempDir() + "no_such_file.npy", "cannot be read");
  const std::pair<std::string, const char*> cases[] = {
      {"", "NUMPY"},
      {"\x93NUMP", "NUMPY"},
      {std::string("\x93NUMPY\x09\x00\x00\x00", 10), "version 9"},
      {std::string("\x93NUMPY\x01\x00\xff\xff", 10), "header of 65535 bytes"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12), "header of 4294967295 bytes"},
      {npy("<f8", "1, 1", std::string(8, '\0')), "element type"},
      {npy(">f4", "1, 1", std::string(4, '\0')), "element type"},
      {npy("<f4", "2, 2", std::string(8, '\0')), "8 bytes"},
      {npy("<f4", "-1, 2", std::string(8, '\0')), "shape"},
      {npy("<f4", "x", std::string(8, '\0')), "shape"},
      {npy("<f4", "4611686018427387904, 4611686018427387904", ""), "0 bytes"},
      {npy("<f4", "2, 1", std::string(8, '\0'), "True"), "Fortran"},
  };
  for (const auto& [bytes, part] : cases) {
    TemporaryFile file("d.npy", bytes);
    expect_refused(file.path(), part);
  }
}

TEST(Npy, EveryTruncationIsHandled) {
  std::string whole = npy("<f4", "3, 2", bytes_of(counting(6)));
  for (size_t n = 0; n < whole.size(); ++n) {
    TemporaryFile file("e.npy", whole.substr(0, n));
    EXPECT_FALSE(open_array_file(file.path()).ok()) << n;
  }
}

TEST(Safetensors, ReadsArraysByName) {
  std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,1,2],"data_offsets":[0,16]},)"
      R"("odd":{"dtype":"F64","shape":[1],"data_offsets":[16,24]},"expert_ids":{"dtype":"I64","shape":[2,1],"data_offsets":[16,32]}})";
  TemporaryFile file("a.safetensors", safetensors(header, bytes_of(counting(4)) + bytes_of(std::vector<int64_t>{3, 4})));
  auto arrays = open_array_file(file.path());
  ASSERT_TRUE(arrays.ok()) << arrays.status().to_string();
  EXPECT_EQ(arrays->arrays.size(), 2U);  // the type that is not read is left out
  const FileArray* ids = arrays->find("expert_ids");
  ASSERT_NE(ids, nullptr);
  int64_t id = 0;
  ASSERT_TRUE(arrays->read_rows(*ids, 1, 1, reinterpret_cast<std::byte*>(&id)).ok());
  EXPECT_EQ(id, 4);
  EXPECT_EQ(arrays->find("x")->num_rows(), 2);
  EXPECT_EQ(arrays->find("y"), nullptr);
}

TEST(Safetensors, MalformedFilesAreErrors) {
  const std::string data(16, '\0');
  const std::pair<std::string, const char*> cases[] = {
      {"", "0 bytes"},
      {std::string(7, '\0'), "7 bytes"},
      {std::string(8, '\xff'), "header of 18446744073709551615 bytes"},
      {safetensors("{", ""), "JSON"},
      {safetensors("[]", ""), "JSON"},
      {safetensors(R"({"x":3})", data), "no dtype"},
      {safetensors(R"({"x":{"dtype":3}})", data), "no dtype"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[4]}})", data), "lacks"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", data), "lacks"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[4],"data_offsets":[0]}})", data), "lacks"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", data), "lies at"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}})", data), "lies at"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})", data), "its shape needs 12"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[4611686018427387908],"data_offsets":[0,16]}})", data), "its shape needs"},
      {safetensors(R"({"x":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}})", data), "lacks"},
  };
  for (const auto& [bytes, part] : cases) {
    TemporaryFile file("b.safetensors", bytes);
    expect_refused(file.path(), part);
  }
}

class Inputs : public testing::Test {
 protected:
  Result<CaseInputs> inputs(const Case& c, TokenRange range) { return make_inputs(*context_, c, range); }
  std::unique_ptr<Context> context_ = Context::create({.threads = 1, .kernel = ""}).take();
};

TEST_F(Inputs, TokensAreTheSameOnAnyNumberOfRanks) {
  TemporaryFile text("text", "some bytes of text"), array("rows.npy", npy("<f4", "7, 32", bytes_of(counting(7 * 32))));
  for (const std::string& input : {std::string(), text.path(), array.path()}) {
    for (double skew : {0.0, 1.0}) {
      Case c = test::small_case();
      c.input = input;
      c.skew = skew;
      auto whole = inputs(c, {0, 40}), part = inputs(c, {13, 11});
      ASSERT_TRUE(whole.ok() && part.ok()) << whole.status().to_string();
      EXPECT_BITS_EQ(part->x, whole->x.view.slice(13, 24));
      EXPECT_BITS_EQ(part->dy, whole->dy.view.slice(13, 24));
      EXPECT_EQ(part->ids.defined(), skew > 0);
      if (skew > 0) {
        EXPECT_BITS_EQ(part->ids, whole->ids.view.slice(13, 24));
        EXPECT_BITS_EQ(part->weights, whole->weights.view.slice(13, 24));
      }
    }
  }
}

TEST_F(Inputs, HiddenStatesAreConvertedAndIdsTaken) {
  std::vector<int64_t> ids{1, 2, 3, 4, 7, 0};
  std::string header = R"({"hidden_states":{"dtype":"F32","shape":[3,32],"data_offsets":[0,384]},)"
                       R"("expert_ids":{"dtype":"I64","shape":[3,2],"data_offsets":[384,432]}})";
  TemporaryFile file("c.safetensors", safetensors(header, bytes_of(counting(96)) + bytes_of(ids)));
  Case c = test::small_case();
  c.input = file.path();
  auto result = inputs(c, {2, 2});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(test::get(result->x, 0), 64);
  EXPECT_EQ(test::get(result->x, 32), 0);  // wraps to row 0
  EXPECT_EQ(test::to_vector(result->ids), (std::vector<double>{7, 0, 1, 2}));
  c.skew = 1;
  EXPECT_NE(inputs(c, {0, 1}).status().message().find("skew"), std::string::npos);
}

TEST_F(Inputs, UnfitArraysAreErrors) {
  auto refused = [&](const std::string& name, const std::string& bytes, const char* part) {
    TemporaryFile file(name, bytes);
    Case c = test::small_case();
    c.input = file.path();
    auto result = inputs(c, {0, 3});
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
  };
  refused("f.npy", npy("<f4", "3, 31", std::string(372, '\0')), "31");
  refused("f.npy", npy("<f4", "32,", std::string(128, '\0')), "32");
  refused("f.npy", npy("<f4", "0, 32", ""), "no rows");
  std::string hidden = R"({"x":{"dtype":"F32","shape":[1,32],"data_offsets":[0,128]},"expert_ids":)";
  refused("f.safetensors", safetensors(R"({"x":{"dtype":"I32","shape":[1,32],"data_offsets":[0,128]}})", std::string(128, '\0')), "i32");
  refused("f.safetensors", safetensors(hidden + R"({"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", std::string(136, '\0')), "expert_ids");
  refused("f.safetensors", safetensors(hidden + R"({"dtype":"I32","shape":[1,3],"data_offsets":[0,12]}})", std::string(136, '\0')), "(1, 2)");
  refused("f.safetensors",
          safetensors(hidden + R"({"dtype":"I32","shape":[1,2],"data_offsets":[128,136]}})",
                      std::string(128, '\0') + std::string("\x08\0\0\0\0\0\0\0", 8)),
          "8 is not in [0, 8)");
}

TEST_F(Inputs, ZipfIdsAreDistinctAndSkewed) {
  constexpr int64_t tokens = 2000, k = 3, num_experts = 16;
  Tensor ids = test::make_tensor(DType::i32, {tokens, k});
  zipf_ids(3, 1.2, num_experts, 0, ids);
  std::vector<int64_t> counts(num_experts);
  for (int64_t t = 0; t < tokens; ++t) {
    std::set<int32_t> own(ids.as<int32_t>() + t * k, ids.as<int32_t>() + (t + 1) * k);
    EXPECT_EQ(own.size(), static_cast<size_t>(k));
    for (int32_t id : own) ++counts[static_cast<size_t>(id)];
  }
  std::sort(counts.begin(), counts.end());
  EXPECT_GT(counts.back(), 6 * counts.front());
  zipf_ids(3, 50, num_experts, 0, ids);  // so steep that draws repeat: still distinct
  for (int64_t t = 0; t < tokens; ++t) {
    EXPECT_EQ(std::set<int32_t>(ids.as<int32_t>() + t * k, ids.as<int32_t>() + (t + 1) * k).size(), static_cast<size_t>(k));
  }
}

TEST_F(Inputs, ZipfProbabilitiesFollowTheLaw) {
  constexpr int64_t tokens = 20000, k = 2, num_experts = 4;
  Tensor ids = test::make_tensor(DType::i32, {tokens, k});
  zipf_ids(3, 1.0, num_experts, 0, ids);
  std::vector<int64_t> first(num_experts);
  for (int64_t t = 0; t < tokens; ++t) ++first[static_cast<size_t>(ids.as<int32_t>()[t * k])];
  std::vector<size_t> order{0, 1, 2, 3};
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return first[a] > first[b]; });
  double all = 1.0 + 1.0 / 2 + 1.0 / 3 + 1.0 / 4;
  for (size_t r = 0; r < 4; ++r) EXPECT_NEAR(static_cast<double>(first[order[r]]) / tokens, 1.0 / static_cast<double>(r + 1) / all, 0.02);
  // Without repetition: after the most popular expert the next has 1/2 of what is left, 1/2 + 1/3 + 1/4.
  int64_t both = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    both += ids.as<int32_t>()[t * k] == static_cast<int32_t>(order[0]) && ids.as<int32_t>()[t * k + 1] == static_cast<int32_t>(order[1]) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(both) / static_cast<double>(first[order[0]]), 0.5 / (all - 1), 0.03);
}

}  // namespace
}  // namespace plait
