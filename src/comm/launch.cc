// Who this process is, from the variables that launchers set. They belong to the launchers, so they are no knobs of plait::Env.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "plait/env.h"
#include "plait/group.h"

namespace plait {
namespace {

/// One launcher's variables. `local_rank` and `local_size` may be absent: then all ranks are taken to be on this machine.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr std::array launchers = {
    Variables{"plait", "PLAIT_RANK", "PLAIT_SIZE", "PLAIT_LOCAL_RANK", "PLAIT_LOCAL_SIZE"},
    Variables{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Variables{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Variables{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    Variables{"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};

std::string_view variable(const char* name) {
  const char* value = name != nullptr ? std::getenv(name) : nullptr;
  return value != nullptr ? value : "";
}

std::optional<int> parse_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A pair of variables, rank and size: both or neither; 0 <= rank < size.
struct Place {
  int rank;
  int size;
};
Result<std::optional<Place>> read_place(const char* rank_name, const char* size_name) {
  const std::string_view rank_text = variable(rank_name);
  const std::string_view size_text = variable(size_name);
  if (rank_text.empty() && size_text.empty()) return std::optional<Place>();
  if (rank_text.empty() || size_text.empty()) {
    const bool no_rank = rank_text.empty();
    return Status::invalid_argument(fmt::format("{} is '{}' but {} is not set: set both, or neither to run alone", no_rank ? size_name : rank_name,
                                                no_rank ? size_text : rank_text, no_rank ? rank_name : size_name));
  }
  const std::optional<int> rank = parse_int(rank_text);
  const std::optional<int> size = parse_int(size_text);
  if (!rank || !size || *size < 1 || *rank < 0 || *rank >= *size) {
    return Status::invalid_argument(
        fmt::format("{}={} and {}={}: a size is at least 1 and a rank lies in 0 to size - 1", rank_name, rank_text, size_name, size_text));
  }
  return std::optional<Place>(Place{*rank, *size});
}

/// SLURM_STEP_TASKS_PER_NODE, as "4(x2),3": the tasks of node `node`.
std::optional<int> tasks_of_node(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), item.size() + 1));
    const std::optional<int> tasks = parse_int(item.substr(0, item.find('(')));
    const size_t times_at = item.find("(x");
    const std::optional<int> times =
        times_at == std::string_view::npos ? std::optional<int>(1) : parse_int(item.substr(times_at + 2, item.find(')') - times_at - 2));
    if (!tasks || !times) return std::nullopt;
    if (node < *times) return tasks;
    node -= *times;
  }
  return std::nullopt;
}

/// Fills local_rank and local_size; without a word from the launcher all ranks are on this machine.
Status read_local(const Variables& from, Launch& launch) {
  launch.local_rank = launch.rank;
  launch.local_size = launch.size;
  std::optional<Place> place;
  if (from.local_size != nullptr) {
    PLAIT_ASSIGN_OR_RETURN(place, read_place(from.local_rank, from.local_size));
  } else {
    const std::optional<int> node = parse_int(variable("SLURM_NODEID"));
    const std::optional<int> rank = parse_int(variable(from.local_rank));
    const std::optional<int> size = tasks_of_node(variable("SLURM_STEP_TASKS_PER_NODE"), node.value_or(-1));
    if (node && rank && size && *rank < *size) place = Place{*rank, *size};
  }
  if (!place) return {};
  if (place->size > launch.size || place->rank > launch.rank) {
    return Status::invalid_argument(fmt::format("{} says local rank {} of {}, but {} rank {} of {}: a machine holds a part of the ranks",
                                                from.launcher, place->rank, place->size, from.rank, launch.rank, launch.size));
  }
  launch.local_rank = place->rank;
  launch.local_size = place->size;
  return {};
}

/// The first of the variables that is set, after its name's prefix; nothing where none is.
std::optional<std::string> first_set(std::initializer_list<const char*> names, const char* prefix) {
  for (const char* name : names) {
    if (!variable(name).empty()) return fmt::format("{}-{}", prefix, variable(name));
  }
  return std::nullopt;
}

std::string job_of(std::string_view launcher) {
  std::optional<std::string> job;
  if (launcher == "torchrun") {
    job = fmt::format("torch-{}-{}-{}", variable("TORCHELASTIC_RUN_ID"), variable("MASTER_ADDR"), variable("MASTER_PORT"));
    if (*job == "torch---") job.reset();
  } else if (launcher == "mpirun") {
    job = first_set({"PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "PMI_JOBID"}, "mpi");
  }
  if (!job && launcher != "plait" && !variable("SLURM_JOB_ID").empty()) {
    job = fmt::format("slurm-{}.{}", variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID"));
  }
  // Last resort: local ranks usually have one parent, the launcher.
  return job ? *job : fmt::format("{}-parent-{}", launcher, getppid());
}

}  // namespace

Result<Launch> detect_launch() {
  PLAIT_ASSIGN_OR_RETURN(const Env env, Env::read());
  Launch launch;
  launch.launcher = "none";
  for (const Variables& from : launchers) {
    // Inside an allocation but outside a job step (sbatch, salloc) Slurm's variables describe the allocation, not this process.
    if (std::string_view(from.launcher) == "srun" && variable("SLURM_STEP_ID").empty()) continue;
    PLAIT_ASSIGN_OR_RETURN(const std::optional<Place> place, read_place(from.rank, from.size));
    if (!place) continue;
    launch.rank = place->rank;
    launch.size = place->size;
    launch.launcher = from.launcher;
    PLAIT_RETURN_IF_ERROR(read_local(from, launch));
    break;
  }
  launch.job = !env.job.empty() ? env.job : launch.launcher == "none" ? fmt::format("alone-{}", getpid()) : job_of(launch.launcher);
  return launch;
}

}  // namespace plait
