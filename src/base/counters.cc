#include "plait/counters.h"

#include <chrono>

namespace plait {
namespace {

constexpr std::array<std::string_view, num_stages> stage_names = {
    "route",
    "permute",
    "exchange_counts",
    "dispatch",
    "gate_up",
    "activation",
    "down",
    "combine",
    "weighted_sum",
    "shared_expert",
    "backward_combine",
    "backward_down",
    "backward_activation",
    "backward_gate_up",
    "backward_dispatch",
    "weight_gradient",
    "backward_route",
    "other",
};
constexpr std::array<std::string_view, num_counters> counter_names = {
    "rows_sent", "bytes_sent", "rows_received", "bytes_received", "bytes_copied", "waits",
    "wait_ns",   "exchanges",  "matmul_flops",  "tiles",          "chains_late",  "early_tiles",
};
static_assert(!stage_names.back().empty() && !counter_names.back().empty());

}  // namespace

std::string_view name(Stage stage) { return stage_names[static_cast<size_t>(stage)]; }
std::string_view name(Counter counter) { return counter_names[static_cast<size_t>(counter)]; }

int64_t now_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace plait
