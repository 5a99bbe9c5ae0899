#pragma once
/// A text whose bytes are the tokens.

#include <cstdint>
#include <memory>
#include <string>

#include "plait/status.h"

namespace plait::train {

/// Bytes that repeat without end; copies share them. Token i of a batch is byte `first + i`; its target is the byte after it.
class Text {
 public:
  /// Errors: a file that cannot be read, or has no bytes.
  static Result<Text> load(const std::string& path);
  /// `origin` names the text in messages. Error: no bytes.
  static Result<Text> from_bytes(std::string bytes, const std::string& origin);
  /// 4096 letters from the seed: what a run trains on where no text is given.
  static Text generated(uint64_t seed);

  int64_t size() const { return bytes_ ? static_cast<int64_t>(bytes_->size()) : 0; }
  uint8_t byte(int64_t position) const { return static_cast<uint8_t>((*bytes_)[static_cast<size_t>(position % size())]); }

 private:
  std::shared_ptr<const std::string> bytes_;
};

}  // namespace plait::train
