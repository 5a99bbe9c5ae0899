#include "moe/dispatch_cache.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "plait/env.h"

namespace plait::moe {
namespace {

constexpr char separator = '\t';

bool parse_line(const std::string& line, std::string& key, CandidateTimes& times) {
  const size_t end = line.find(separator);
  if (end == std::string::npos || end == 0) return false;
  key = line.substr(0, end);
  std::istringstream numbers(line.substr(end + 1));
  for (DispatchTimes& t : times) {
    if (!(numbers >> t.forward_ns >> t.backward_ns) || t.forward_ns < 0 || t.backward_ns < 0) return false;
  }
  return true;
}

}  // namespace

std::string DispatchCache::default_path() {
  const Result<Env> env = Env::read();
  const std::string folder = env.ok() ? env.value().cache_folder() : "";
  return folder.empty() ? "" : folder + "/dispatchers.txt";
}

std::map<std::string, CandidateTimes> DispatchCache::load() const {
  std::map<std::string, CandidateTimes> lines;
  std::ifstream file(path_);
  std::string key;
  CandidateTimes times;
  for (std::string line; std::getline(file, line);) {
    if (parse_line(line, key, times)) lines[key] = times;
  }
  return lines;
}

void DispatchCache::store(const std::string& key, const CandidateTimes& times) const {
  if (path_.empty()) return;
  std::map<std::string, CandidateTimes> lines = load();
  lines[key] = times;
  std::error_code error;
  const std::filesystem::path path(path_);
  std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path written = path_ + "." + std::to_string(getpid());
  std::ofstream file(written);
  for (const auto& [name, values] : lines) {
    file << name << separator;
    for (const DispatchTimes& t : values) file << ' ' << t.forward_ns << ' ' << t.backward_ns;
    file << '\n';
  }
  file.close();
  if (file) std::filesystem::rename(written, path, error);
  if (!file || error) std::filesystem::remove(written, error);
}

}  // namespace plait::moe
