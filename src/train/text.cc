#include "train/text.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <utility>

#include "train/random.h"

namespace plait::train {

Result<Text> Text::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  std::array<char, 65536> piece;
  while (file.read(piece.data(), piece.size()) || file.gcount() > 0) bytes.append(piece.data(), static_cast<size_t>(file.gcount()));
  if (!file.eof()) return Status::invalid_argument(fmt::format("input \"{}\" cannot be read: give the path of a readable file", path));
  return from_bytes(std::move(bytes), path);
}

Result<Text> Text::from_bytes(std::string bytes, const std::string& origin) {
  if (bytes.empty()) return Status::invalid_argument(fmt::format("input \"{}\" has 0 bytes: a text needs at least 1", origin));
  Text text;
  text.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  return text;
}

Text Text::generated(uint64_t seed) {
  constexpr size_t num_bytes = 4096;
  std::string bytes;
  for (size_t i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>('a' + random_bits(seed, Stream::text, i) % 26));
  Text text;
  text.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  return text;
}

}  // namespace plait::train
