#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "observe/measure.h"
#include "observe/verify_call.h"
#include "plait/routing.h"

namespace plait {
namespace {

/// A result of the whole batch or of all experts, whatever the number of ranks that made it.
struct GlobalResult {
  DType dtype = DType::f32;
  std::vector<std::byte> bytes;
};
using GlobalResults = std::map<std::string, GlobalResult>;

/// Tokens of `rank` when the batch is spread over `num_ranks`: the first N % R ranks have one more.
TokenRange spread_tokens(int64_t num_tokens, int rank, int num_ranks) {
  int64_t share = num_tokens / num_ranks, rest = num_tokens % num_ranks;
  return {rank * share + std::min<int64_t>(rank, rest), share + (rank < rest ? 1 : 0)};
}

/// The results that do not depend on the number of ranks, docs/numerics.md. The router's losses are means over a rank's tokens, so that
/// dx depends on the number of ranks where they are on.
bool independent_of_ranks(std::string_view result, const RouterConfig& router, bool given) {
  if (result == "dx" && !given && (router.aux_loss != 0 || router.z_loss != 0)) return false;
  for (std::string_view name : {"y", "dx", "dweights", "dw_gate_up", "dw_down", "db_gate_up", "db_down"}) {
    if (result == name) return true;
  }
  return false;
}

/// One batch on one group size. Every rank puts its part into its place.
class AcrossRun {
 public:
  AcrossRun(const VerifyOptions& options, Dispatcher dispatcher, int num_ranks)
      : options_(options), run_case_(options.run_case), dispatcher_(dispatcher), num_ranks_(num_ranks) {
    num_tokens_ = run_case_.ranks * run_case_.tokens;
    run_case_.ranks = num_ranks;
    run_case_.engine = Engine::threads;
  }

  Result<GlobalResults> run() {
    PLAIT_ASSIGN_OR_RETURN(int threads, threads_per_rank(run_case_));
    std::vector<Status> statuses = run_ranks(num_ranks_, {}, [&](Group& group) { return run_rank(group, threads); });
    for (const Status& status : statuses) PLAIT_RETURN_IF_ERROR(status);
    return std::move(results_);
  }

 private:
  Status run_rank(Group& group, int threads) {
    PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<Context> context, Context::create({.threads = threads, .kernel = ""}));
    TokenRange range = spread_tokens(num_tokens_, group.rank(), num_ranks_);
    PLAIT_ASSIGN_OR_RETURN(CaseInputs inputs, make_inputs(*context, run_case_, range));
    PLAIT_ASSIGN_OR_RETURN(LayerRun run, LayerRun::create(*context, group, run_case_, std::move(inputs)));
    if (options_.before_call) options_.before_call(dispatcher_, num_ranks_, run.parameters());
    PLAIT_RETURN_IF_ERROR(run.forward(dispatcher_));
    PLAIT_RETURN_IF_ERROR(run.backward());
    put(run, range, "");
    if (run.inputs().ids.defined()) return {};
    Tensor ids = run.state().ids, weights = run.state().weights;
    run.set_routing({ids, weights});
    PLAIT_RETURN_IF_ERROR(run.forward(dispatcher_));
    PLAIT_RETURN_IF_ERROR(run.backward());
    put(run, range, ", given routing");
    return {};
  }

  /// Copies this rank's part of each result to where it lies in the whole.
  void put(const LayerRun& run, TokenRange range, std::string_view routing) {
    std::lock_guard lock(mutex_);
    for (const NamedResult& result : run.results(true)) {
      if (!independent_of_ranks(result.name, run.config().router, !routing.empty() || run.inputs().ids.defined())) continue;
      bool of_tokens = result.name == "y" || result.name == "dx" || result.name == "dweights";
      int64_t items = of_tokens ? num_tokens_ : run.config().router.num_experts, own = result.view.shape[0];
      int64_t first = of_tokens ? range.first : ExpertPlacement{items, num_ranks_}.global(run.group().rank(), 0);
      int64_t item_bytes = size_of(result.view.dtype);
      for (int d = 1; d < result.view.num_dims; ++d) item_bytes *= result.view.shape[d];
      GlobalResult& global = results_[fmt::format("{}{}", result.name, routing)];
      global.dtype = result.view.dtype;
      global.bytes.resize(static_cast<size_t>(items * item_bytes));
      if (own > 0) std::memcpy(global.bytes.data() + first * item_bytes, result.view.data, static_cast<size_t>(own * item_bytes));
    }
  }

  const VerifyOptions& options_;
  Case run_case_;
  Dispatcher dispatcher_;
  int num_ranks_;
  int64_t num_tokens_ = 0;
  std::mutex mutex_;  // guards results_
  GlobalResults results_;
};

ConstTensorView flat(const GlobalResult& result) {
  return {result.bytes.data(), result.dtype, {static_cast<int64_t>(result.bytes.size()) / size_of(result.dtype)}};
}

/// One line for all results of a dispatcher on a group size.
CheckLine compare_with_first(const VerifyOptions& options, std::string name, int num_ranks, const GlobalResults& results,
                             const GlobalResults& baseline) {
  CheckLine line{"across-ranks", std::move(name), true, fmt::format("{} results, same bits", results.size()), ""};
  for (const auto& [result, computed] : results) {
    auto expected = baseline.find(result);
    Difference difference = expected == baseline.end() ? Difference{false} : compare_bits(flat(computed), flat(expected->second));
    if (difference.equal) continue;
    if (line.ok) {
      line.detail = fmt::format("{}: element {}", result, difference.largest);
      if (expected != baseline.end() && difference.largest >= 0) {
        line.detail +=
            fmt::format(" of {}: {:.9g} against {:.9g}, first difference at {}", flat(computed).num_elements(),
                        element(flat(computed), difference.largest), element(flat(expected->second), difference.largest), difference.first);
      }
      line.detail += "; differing:";
    }
    line.ok = false;
    line.detail += fmt::format(" {};", result);
  }
  if (!line.ok) {
    line.reproducer =
        fmt::format("{} --across-ranks {},{}", verify::reproducer(options.run_case, "across-ranks"), options.across_ranks[0], num_ranks);
  }
  return line;
}

}  // namespace

Result<std::vector<CheckLine>> verify_across_ranks(const VerifyOptions& options) {
  for (int num_ranks : options.across_ranks) {
    if (num_ranks < 1) return Status::invalid_argument(fmt::format("across-ranks: {} ranks; each must be at least 1", num_ranks));
    PLAIT_RETURN_IF_ERROR(options.run_case.layer.validate(num_ranks));
  }
  std::vector<CheckLine> lines;
  GlobalResults baseline;
  std::vector<Dispatcher> dispatchers = verify::baseline_first();
  auto num_runs = static_cast<double>(options.across_ranks.size() * dispatchers.size());
  double done = 0;
  for (int num_ranks : options.across_ranks) {
    for (Dispatcher dispatcher : dispatchers) {
      if (options.interrupted && options.interrupted()) return Status::interrupted("verification across ranks stopped");
      if (options.progress) options.progress(done++ / num_runs, fmt::format("{} on {} ranks", name(dispatcher), num_ranks));
      PLAIT_ASSIGN_OR_RETURN(GlobalResults results, AcrossRun(options, dispatcher, num_ranks).run());
      if (baseline.empty()) {
        baseline = std::move(results);
        lines.push_back({"across-ranks", fmt::format("{} on {}", name(dispatcher), num_ranks), true, fmt::format("{} results", baseline.size()), ""});
        continue;
      }
      std::string line = fmt::format("{} on {} = {} on {}", name(dispatcher), num_ranks, name(dispatchers[0]), options.across_ranks[0]);
      lines.push_back(compare_with_first(options, std::move(line), num_ranks, results, baseline));
    }
  }
  return lines;
}

}  // namespace plait
