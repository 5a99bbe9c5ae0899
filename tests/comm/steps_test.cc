// Many steps: memory, descriptors and mappings stay as they are after the first ones.

#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/status_macros.h"
#include "comm/common_group.h"
#include "engines.h"
#include "support/test_tensors.h"

namespace plait::test {
namespace {

using StepsTest = OnEngine;
INSTANTIATE_TEST_SUITE_P(Engines, StepsTest, both_engines, engine_test_name);

int64_t count_lines(const char* path) {
  std::ifstream file(path);
  return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
}

/// Memory files of groups that this process maps.
int count_window_mappings() {
  std::ifstream file("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(file, line);) count += line.find("plait-window") != std::string::npos ? 1 : 0;
  return count;
}

int64_t count_descriptors() {
  int64_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

struct Use {
  int64_t reserved, descriptors, mappings;
};
Use use_of(Group& group) {
  return {dynamic_cast<comm::CommonGroup&>(group).reserved_window_bytes(), count_descriptors(), count_lines("/proc/self/maps")};
}

/// One step of a layer: some regions of changing sizes, views that live over several exchanges.
Status step(Group& group, Random& random, std::vector<Exchange>& alive) {
  const int64_t bytes = 1 + random.below(200'000);
  PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(bytes));
  region.data()[0] = region.data()[bytes - 1] = static_cast<std::byte>(group.rank());
  PLAIT_ASSIGN_OR_RETURN(Exchange exchange, group.exchange("step", {}, {&region, 1}));
  for (int peer = 0; peer < group.size(); ++peer) {
    const RegionView& view = exchange.regions[0][static_cast<size_t>(peer)];
    if (view.data()[0] != static_cast<std::byte>(peer) || view.data()[view.ref().bytes - 1] != static_cast<std::byte>(peer)) return wrong("content");
  }
  alive.push_back(std::move(exchange));
  if (alive.size() > 4) alive.erase(alive.begin() + random.below(4));
  return {};
}

TEST_P(StepsTest, ThousandsOfStepsUseConstantMemory) {
  auto body = [&](Group& group) -> Status {
    Random random(static_cast<uint64_t>(group.rank()) + 1);
    std::vector<Exchange> alive;
    Use early{};
    for (int i = 0; i < 3000; ++i) {
      PLAIT_RETURN_IF_ERROR(step(group, random, alive));
      if (i == 500) early = use_of(group);
    }
    const Use late = use_of(group);
    PLAIT_RETURN_IF_ERROR(group.barrier("measured"));
    const bool own_process = GetParam() == Engine::shm;  // among threads, the others' maps and descriptors are counted too
    if (late.reserved > 2 * early.reserved) return wrong("reserved " + std::to_string(early.reserved) + " then " + std::to_string(late.reserved));
    if (own_process && late.descriptors != early.descriptors) return wrong("descriptors");
    if (own_process && late.mappings > early.mappings + 8)
      return wrong("mappings " + std::to_string(early.mappings) + " then " + std::to_string(late.mappings));
    return {};
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 3, {}, body)), "");
}

TEST_P(StepsTest, AGrowingNeedReplacesSegmentsThatAreTooSmall) {
  auto body = [](Group& group) -> Status {
    auto& common = dynamic_cast<comm::CommonGroup&>(group);
    for (int64_t bytes = 1 << 20; bytes <= 64 << 20; bytes *= 2) {
      PLAIT_ASSIGN_OR_RETURN(const Region region, group.allocate(bytes));
      PLAIT_ASSIGN_OR_RETURN(Exchange exchange, group.exchange("grow", {}, {&region, 1}));
      exchange = {};
      PLAIT_RETURN_IF_ERROR(group.barrier("dropped"));
    }
    if (common.reserved_window_bytes() > 80 << 20) return wrong("reserved " + std::to_string(common.reserved_window_bytes()));
    for (int i = 0; i < 300; ++i) PLAIT_RETURN_IF_ERROR(group.barrier("idle"));
    if (common.reserved_window_bytes() != 0) return wrong("an idle segment stays");
    if (group.engine() == Engine::shm && count_window_mappings() != 1) return wrong("more than the control block is mapped");
    return group.barrier("measured");
  };
  EXPECT_EQ(first_error(run_engine(GetParam(), 2, {}, body)), "");
}

}  // namespace
}  // namespace plait::test
