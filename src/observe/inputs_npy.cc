#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "base/status_macros.h"
#include "observe/inputs_file.h"

namespace plait {
namespace {

constexpr int64_t max_header_bytes = int64_t{1} << 20;  // real ones have about 100

Status damaged(const std::string& path, std::string_view what) {
  return Status::invalid_argument(fmt::format("{}: not a .npy file that can be read: {}", path, what));
}

/// The text after "'key':" in the header's dictionary, "" where there is none.
std::string_view after_key(std::string_view header, std::string_view key) {
  for (char quote : {'\'', '"'}) {
    std::string quoted = quote + std::string(key) + quote;
    size_t at = header.find(quoted);
    if (at == std::string_view::npos) continue;
    header.remove_prefix(at + quoted.size());
    size_t value = header.find_first_not_of(" :");
    return value == std::string_view::npos ? std::string_view() : header.substr(value);
  }
  return {};
}

std::optional<DType> parse_descr(std::string_view text) {
  if (text.size() < 2) return std::nullopt;
  size_t end = text.find(text[0], 1);
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view descr = text.substr(1, end - 1);
  if (descr == "<f4") return DType::f32;
  if (descr == "<f2") return DType::f16;
  if (descr == "bfloat16" || descr == "<V2" || descr == "|V2") return DType::bf16;  // how ml_dtypes saves it
  if (descr == "<i4") return DType::i32;
  if (descr == "<i8") return DType::i64;
  if (descr == "|u1") return DType::u8;
  return std::nullopt;
}

/// "(3, 4)" -> {3, 4}; nothing where it is not a tuple of whole numbers.
std::optional<std::vector<int64_t>> parse_shape(std::string_view text) {
  size_t end = text.find(')');
  if (text.empty() || text[0] != '(' || end == std::string_view::npos) return std::nullopt;
  std::vector<int64_t> shape;
  const char *p = text.data() + 1, *stop = text.data() + end;
  while (p != stop) {
    if (*p == ' ' || *p == ',') {
      ++p;
      continue;
    }
    int64_t size = -1;
    auto [next, error] = std::from_chars(p, stop, size);
    if (error != std::errc() || size < 0) return std::nullopt;
    shape.push_back(size);
    p = next;
  }
  return shape;
}

/// Product of the sizes times the element size, or nothing where it does not fit into 63 bits.
std::optional<int64_t> checked_bytes(const FileArray& array) {
  int64_t bytes = size_of(array.dtype);
  for (int64_t size : array.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

struct NpyHeader {
  std::string dictionary;
  int64_t data_begin = 0, data_bytes = 0;
};

Result<NpyHeader> read_header(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status::invalid_argument(fmt::format("input \"{}\" cannot be read: give the path of a readable file", path));
  int64_t file_bytes = file.tellg();
  file.seekg(0);
  std::array<unsigned char, 12> start{};
  file.read(reinterpret_cast<char*>(start.data()), 10);
  if (!file || std::memcmp(start.data(), "\x93NUMPY", 6) != 0) return damaged(path, "it does not start with \\x93NUMPY");
  if (start[6] < 1 || start[6] > 3) return damaged(path, fmt::format("format version {}, known are 1 to 3", start[6]));
  int64_t header_bytes = start[8] | start[9] << 8, header_begin = 10;
  if (start[6] > 1) {
    file.read(reinterpret_cast<char*>(start.data()) + 10, 2);
    header_bytes |= static_cast<int64_t>(start[10]) << 16 | static_cast<int64_t>(start[11]) << 24;
    header_begin = 12;
  }
  if (!file || header_bytes > max_header_bytes || header_begin + header_bytes > file_bytes) {
    return damaged(path, fmt::format("a header of {} bytes in a file of {}", header_bytes, file_bytes));
  }
  NpyHeader header{std::string(static_cast<size_t>(header_bytes), '\0'), header_begin + header_bytes, file_bytes - header_begin - header_bytes};
  file.read(header.dictionary.data(), header_bytes);
  if (!file) return damaged(path, "its header could not be read");
  return header;
}

}  // namespace

Result<ArrayFile> open_npy(const std::string& path) {
  static_assert(std::endian::native == std::endian::little, "arrays are read as they lie in the file");
  PLAIT_ASSIGN_OR_RETURN(const NpyHeader header, read_header(path));
  std::string shown = header.dictionary.substr(0, 80);
  std::optional<DType> dtype = parse_descr(after_key(header.dictionary, "descr"));
  if (!dtype) return damaged(path, fmt::format("element type in \"{}\"; read are <f4, <f2, bfloat16, <i4, <i8 and |u1", shown));
  std::optional<std::vector<int64_t>> shape = parse_shape(after_key(header.dictionary, "shape"));
  if (!shape) return damaged(path, fmt::format("no shape in \"{}\"", shown));
  if (!after_key(header.dictionary, "fortran_order").starts_with("False")) {
    return damaged(path, "the elements are in Fortran order; save numpy.ascontiguousarray(array)");
  }
  FileArray array{"", *dtype, *shape, header.data_begin};
  std::optional<int64_t> bytes = checked_bytes(array);
  if (!bytes || *bytes > header.data_bytes) {
    return damaged(path, fmt::format("{} bytes of elements, fewer than its shape needs", header.data_bytes));
  }
  return ArrayFile{path, {array}};
}

}  // namespace plait
