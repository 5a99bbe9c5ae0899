#include "observe/inputs_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "base/status_macros.h"

namespace plait {

int64_t FileArray::num_rows() const {
  int64_t n = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) n *= shape[d];
  return n;
}

const FileArray* ArrayFile::find(std::string_view name) const {
  auto found = std::find_if(arrays.begin(), arrays.end(), [&](const FileArray& array) { return array.name == name; });
  return found == arrays.end() ? nullptr : &*found;
}

Status ArrayFile::read_rows(const FileArray& array, int64_t first, int64_t count, std::byte* out) const {
  if (count == 0) return {};
  int64_t rows = array.num_rows(), row_bytes = array.row_bytes();
  if (rows == 0) return Status::invalid_argument(fmt::format("{}: array \"{}\" has no rows: at least 1 is needed", path, array.name));
  std::ifstream file(path, std::ios::binary);
  while (count > 0 && file) {
    int64_t row = first % rows, run = std::min(count, rows - row);
    file.seekg(array.offset + row * row_bytes);
    file.read(reinterpret_cast<char*>(out), run * row_bytes);
    out += run * row_bytes;
    first += run;
    count -= run;
  }
  if (!file)
    return Status::invalid_argument(fmt::format("{}: rows of array \"{}\" could not be read: the file changed or is damaged", path, array.name));
  return {};
}

bool is_array_path(std::string_view path) { return path.ends_with(".npy") || path.ends_with(".safetensors"); }

Result<ArrayFile> open_array_file(const std::string& path) { return path.ends_with(".npy") ? open_npy(path) : open_safetensors(path); }

}  // namespace plait
