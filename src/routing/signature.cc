#include "routing/signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "plait/counters.h"

namespace plait {
namespace {

template <size_t N>
void copy_text(std::string_view text, std::array<char, N>& to) {
  std::copy_n(text.data(), std::min(text.size(), N - 1), to.data());
}

/// FNV-1a.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 14695981039346656037ULL;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ULL;
  return hash;
}

struct Field {
  std::string_view name;
  std::string (*text)(const SignatureBlock& block);
};

std::string yes_no(int64_t value) { return value != 0 ? "yes" : "no"; }

/// In the order in which a difference is reported: the cause before its consequences.
constexpr Field fields[] = {
    {"operation", [](const SignatureBlock& b) { return std::string(b.operation.data()); }},
    {"dispatcher", [](const SignatureBlock& b) { return std::string(b.dispatcher.data()); }},
    {"element type", [](const SignatureBlock& b) { return std::string(name(static_cast<DType>(b.dtype))); }},
    {"number of experts", [](const SignatureBlock& b) { return std::to_string(b.num_experts); }},
    {"experts per token (k)", [](const SignatureBlock& b) { return std::to_string(b.k); }},
    {"hidden size", [](const SignatureBlock& b) { return std::to_string(b.hidden); }},
    {"intermediate size", [](const SignatureBlock& b) { return std::to_string(b.intermediate); }},
    {"inside the bit contract", [](const SignatureBlock& b) { return yes_no(b.in_contract); }},
    {"list of expected rows given", [](const SignatureBlock& b) { return yes_no(b.num_expected); }},
    {"detail", [](const SignatureBlock& b) { return fmt::format("{} (hash {:016x})", b.detail.data(), b.detail_hash); }},
};

/// The rank whose value most ranks share; of several such values the one of the smallest rank.
size_t majority_rank(const std::vector<std::string>& values) {
  size_t best = 0;
  ptrdiff_t best_votes = 0;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const ptrdiff_t votes = std::count(values.begin(), values.end(), values[rank]);
    if (votes > best_votes) {
      best = rank;
      best_votes = votes;
    }
  }
  return best;
}

bool all_equal(std::span<const SignatureBlock> blocks) {
  auto bytes = [](const SignatureBlock& block) { return std::as_bytes(std::span(&block, 1)); };
  return std::all_of(blocks.begin(), blocks.end(),
                     [&](const SignatureBlock& block) { return std::ranges::equal(bytes(block), bytes(blocks.front())); });
}

}  // namespace

SignatureBlock pack(const CallSignature& signature) {
  SignatureBlock block;
  copy_text(signature.operation, block.operation);
  copy_text(signature.dispatcher, block.dispatcher);
  copy_text(signature.detail, block.detail);
  block.detail_hash = hash_of(signature.detail);
  block.dtype = static_cast<int64_t>(signature.dtype);
  block.num_experts = signature.num_experts;
  block.k = signature.k;
  block.hidden = signature.hidden;
  block.intermediate = signature.intermediate;
  block.in_contract = signature.in_contract ? 1 : 0;
  return block;
}

Status compare_signatures(std::span<const SignatureBlock> blocks) {
  if (all_equal(blocks)) return {};
  for (const Field& field : fields) {
    std::vector<std::string> values;
    for (const SignatureBlock& block : blocks) values.push_back(field.text(block));
    const size_t usual = majority_rank(values);
    for (size_t rank = 0; rank < values.size(); ++rank) {
      if (values[rank] == values[usual]) continue;
      return Status::invalid_argument(fmt::format("{}: rank {} has {}, rank {} has {}; all ranks of a group must make the same call", field.name,
                                                  rank, values[rank], usual, values[usual]))
          .at_rank(static_cast<int>(rank))
          .in_stage(plait::name(Stage::exchange_counts));
    }
  }
  return Status::internal("signatures differ in bytes that no field names").in_stage(plait::name(Stage::exchange_counts));
}

}  // namespace plait
