#pragma once
/// Reading rows of hidden states and expert ids from .npy and .safetensors files, without loading the rest.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plait/status.h"
#include "plait/tensor.h"

namespace plait {

/// One array of a file: row-major, little endian.
struct FileArray {
  std::string name;  ///< "" in a .npy file
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< in bytes, from the start of the file

  int64_t num_columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t num_rows() const;  ///< product of all dimensions but the last
  int64_t row_bytes() const { return num_columns() * size_of(dtype); }
};

struct ArrayFile {
  std::string path;
  std::vector<FileArray> arrays;

  const FileArray* find(std::string_view name) const;
  /// Rows [first, first + count) into `out`, counted modulo num_rows(). Errors: no rows, or a file that became shorter.
  Status read_rows(const FileArray& array, int64_t first, int64_t count, std::byte* out) const;
};

/// True for names that end in .npy or .safetensors; anything else is text.
bool is_array_path(std::string_view path);
/// Reads and checks the header. Errors name the file and what is wrong with it: not readable, cut short, not of this format, a type other
/// than f32, bf16, f16, i32, i64 or u8, Fortran order, offsets beyond the end.
Result<ArrayFile> open_array_file(const std::string& path);

/// The formats, whatever the file is called.
Result<ArrayFile> open_npy(const std::string& path);
Result<ArrayFile> open_safetensors(const std::string& path);

}  // namespace plait
