#pragma once
/// The fixed-size form in which a CallSignature travels, and the comparison of all ranks' signatures.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plait/routing.h"

namespace plait {

/// A CallSignature as plain bytes. Texts that are longer than their field are cut for messages; the hash compares them in full.
struct SignatureBlock {
  std::array<char, 48> operation{};
  std::array<char, 16> dispatcher{};
  std::array<char, 192> detail{};
  uint64_t detail_hash = 0;
  int64_t dtype = 0, num_experts = 0, k = 0, hidden = 0, intermediate = 0, in_contract = 0;
  int64_t num_expected = 0;  ///< 0, or the length of the list of expected rows that the caller passed
};
SignatureBlock pack(const CallSignature& signature);

/// Ok where all ranks' blocks are equal. Else an error that every rank derives alike from the same blocks: the first field that differs,
/// the first rank that is not with the majority, a rank of the majority, and both values.
Status compare_signatures(std::span<const SignatureBlock> blocks);

}  // namespace plait
