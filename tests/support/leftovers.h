#pragma once
/// What a group of processes may have left behind on the machine.

#include <string>

namespace plait::test {

/// Names in /dev/shm.
int count_shared_files();

/// Whether a socket of this group's name exists on the machine.
bool name_in_use(const std::string& job, const std::string& group);

}  // namespace plait::test
