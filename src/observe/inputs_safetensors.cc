#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status_macros.h"
#include "observe/inputs_file.h"

namespace plait {
namespace {

constexpr int64_t max_header_bytes = int64_t{100} << 20;  // the format's own limit
constexpr int64_t length_bytes = 8;

Status damaged(const std::string& path, std::string_view what) {
  return Status::invalid_argument(fmt::format("{}: not a .safetensors file that can be read: {}", path, what));
}

std::optional<DType> parse_dtype(const std::string& text) {
  if (text == "F32") return DType::f32;
  if (text == "BF16") return DType::bf16;
  if (text == "F16") return DType::f16;
  if (text == "I32") return DType::i32;
  if (text == "I64") return DType::i64;
  if (text == "U8" || text == "BOOL") return DType::u8;
  return std::nullopt;
}

/// A list of whole numbers >= 0, or nothing.
std::optional<std::vector<int64_t>> parse_numbers(const nlohmann::json& entry, const char* key) {
  auto list = entry.find(key);
  if (list == entry.end() || !list->is_array()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const nlohmann::json& item : *list) {
    if (!item.is_number_unsigned()) return std::nullopt;
    numbers.push_back(item.get<int64_t>());
    if (numbers.back() < 0) return std::nullopt;
  }
  return numbers;
}

/// Nothing where the type is one that this reader skips; an error where the entry contradicts itself or the file.
Result<std::optional<FileArray>> parse_entry(const std::string& path, const std::string& key, const nlohmann::json& entry, int64_t data_begin,
                                             int64_t data_bytes) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string()) return damaged(path, fmt::format("\"{}\" has no dtype", key));
  std::optional<DType> dtype = parse_dtype(entry["dtype"].get<std::string>());
  if (!dtype) return std::optional<FileArray>();
  auto shape = parse_numbers(entry, "shape"), offsets = parse_numbers(entry, "data_offsets");
  if (!shape || !offsets || offsets->size() != 2) return damaged(path, fmt::format("\"{}\" lacks shape or data_offsets", key));
  int64_t begin = (*offsets)[0], end = (*offsets)[1], need = size_of(*dtype);
  bool overflow = false;
  for (int64_t size : *shape) overflow = overflow || __builtin_mul_overflow(need, size, &need);
  if (begin > end || end > data_bytes) return damaged(path, fmt::format("\"{}\" lies at {}..{} of {} bytes", key, begin, end, data_bytes));
  if (overflow || need != end - begin) return damaged(path, fmt::format("\"{}\" has {} bytes, its shape needs {}", key, end - begin, need));
  return std::optional(FileArray{key, *dtype, *shape, data_begin + begin});
}

}  // namespace

Result<ArrayFile> open_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status::invalid_argument(fmt::format("input \"{}\" cannot be read: give the path of a readable file", path));
  int64_t file_bytes = file.tellg();
  file.seekg(0);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), length_bytes);
  if (!file) return damaged(path, fmt::format("{} bytes, its length alone needs {}", file_bytes, length_bytes));
  if (header_bytes > static_cast<uint64_t>(max_header_bytes) || static_cast<int64_t>(header_bytes) > file_bytes - length_bytes) {
    return damaged(path, fmt::format("a header of {} bytes in a file of {}", header_bytes, file_bytes));
  }
  std::string text(static_cast<size_t>(header_bytes), '\0');
  file.read(text.data(), static_cast<std::streamsize>(header_bytes));
  nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
  if (!file || header.is_discarded() || !header.is_object()) return damaged(path, "its header is not a JSON object");
  ArrayFile result{path, {}};
  int64_t data_begin = length_bytes + static_cast<int64_t>(header_bytes);
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") continue;
    PLAIT_ASSIGN_OR_RETURN(std::optional<FileArray> array, parse_entry(path, key, entry, data_begin, file_bytes - data_begin));
    if (array) result.arrays.push_back(std::move(*array));
  }
  return result;
}

}  // namespace plait
