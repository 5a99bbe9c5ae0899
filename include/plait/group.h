#pragma once
/// Group: ranks that call together. How they reach each other is an engine's business (threads, shm; ucx between machines).

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plait/context.h"
#include "plait/status.h"

namespace plait {

enum class Engine : uint8_t { threads, shm, ucx };
std::string_view name(Engine engine);
Result<Engine> parse_engine(std::string_view text);

/// Where a published region lies, seen from any rank: plain data that travels with an exchange.
struct RegionRef {
  int32_t rank = -1;
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;  ///< unique per owner and group
};

/// Memory in this rank's window, exactly as large as asked for. It lives until its owner has dropped it and every rank has dropped the
/// view that an exchange gave it, or the group ends. The pages are reused; nothing is cleared.
class Region {
 public:
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  const RegionRef& ref() const { return ref_; }
  Region() = default;
  Region(std::byte* data, int64_t bytes, RegionRef ref, std::shared_ptr<void> owner)
      : data_(data), bytes_(bytes), ref_(ref), owner_(std::move(owner)) {}

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  RegionRef ref_;
  std::shared_ptr<void> owner_;  ///< dropping the last copy is the owner's release
};

/// Another rank's region (or one's own), mapped or referenced for reading. Valid as long as it is held, whatever happens to the owner.
/// `data()` is null where the peer's memory is not addressable from here (another machine): then rows come by all_to_all_v.
class RegionView {
 public:
  const std::byte* data() const { return data_; }
  std::byte* writable() const { return const_cast<std::byte*>(data_); }  ///< for results written home
  const RegionRef& ref() const { return ref_; }
  RegionView() = default;
  RegionView(const std::byte* data, RegionRef ref, std::shared_ptr<void> hold) : data_(data), ref_(ref), hold_(std::move(hold)) {}

 private:
  const std::byte* data_ = nullptr;
  RegionRef ref_;
  std::shared_ptr<void> hold_;  ///< dropping the last copy is this rank's release
};

/// Regions that a rank may publish in one exchange.
inline constexpr int max_published = 3;

/// What one exchange brought: every rank's payload, rank after rank, and every rank's regions.
struct Exchange {
  int64_t payload_bytes = 0;
  std::vector<std::byte> payloads;  ///< size() * payload_bytes
  /// regions[i][rank]: what `rank` published in place i; empty views where it published nothing there.
  std::array<std::vector<RegionView>, max_published> regions;

  std::span<const std::byte> payload(int rank) const {
    return std::span(payloads).subspan(static_cast<size_t>(rank * payload_bytes), static_cast<size_t>(payload_bytes));
  }
};

/// A run of rows that leaves for `peer`: it starts `offset` bytes into the sender's published region.
struct SendBlock {
  int peer;
  int64_t offset;
  int64_t bytes;
};
/// A run of rows that arrives from `peer`: where it starts in the peer's region, and the place here where it must lie.
struct RecvBlock {
  int peer;
  int64_t offset;
  int64_t bytes;
  std::byte* destination;
};

struct GroupOptions {
  double timeout_s = 60;  ///< every wait on another rank ends after this long, with an error that names that rank
  int spin_us = 20;       ///< busy waiting before a wait sleeps
  /// Asked several times a second by a thread that waits for another rank. True ends the wait and stops the group: this rank's error is
  /// `interrupted`, the others' names this rank.
  std::function<bool()> interrupted = {};
};

/// R ranks that call the same collective functions in the same order. One thread per rank calls it. After the first error the group is
/// aborted: every call on every rank returns the first rank's error; the process lives on and may form a new group.
/// docs/design/0003-groups.md explains the protocol and how a network engine fits in.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Engine engine() const = 0;
  virtual const GroupOptions& options() const = 0;

  /// Returns when all ranks have called it. `stage` names what is going on, for messages.
  virtual Status barrier(std::string_view stage) = 0;

  /// Gathers `payload` (any size, equal on all ranks; a rank with another size is named) and publishes `regions` (at most max_published;
  /// an empty one holds its place and publishes nothing) to all. What a rank wrote to its regions before the call is visible to all after
  /// it. Carries lazy releases of earlier regions.
  virtual Result<Exchange> exchange(std::string_view stage, std::span<const std::byte> payload, std::span<const Region> regions = {}) = 0;

  /// Memory in this rank's window. Error: resource_exhausted, with need, limit and where the limit comes from; never a SIGBUS later.
  virtual Result<Region> allocate(int64_t bytes) = 0;
  /// This rank's region that starts at `data`, has at least `bytes` and is still held; or nothing. For rows that can be published where
  /// they are instead of being copied first.
  virtual std::optional<Region> find_region(const std::byte* data, int64_t bytes) const = 0;

  /// Moves rows straight into place. `regions` come from the exchange that published the senders' regions. Blocks towards one peer are
  /// listed in the same order on both sides. Blocks may be empty. On engines with common memory the receiver copies (on the context's
  /// threads); `own` and `send` are then only counted. Own rows must not change until this rank's next barrier() or exchange() has returned:
  /// slower peers may still read them. Adds bytes_sent, bytes_received (own rows excluded) and bytes_copied to the context's recorder; rows are
  /// the caller's to count.
  virtual Status all_to_all_v(const Context& context, std::string_view stage, const Region& own, std::span<const RegionView> regions,
                              std::span<const SendBlock> send, std::span<const RecvBlock> recv) = 0;

  /// True where RegionView::data() of that peer is an address.
  virtual bool addressable(int peer) const = 0;

  /// Monotonic counters for readiness inside a collective call: this rank's counter `channel` (0..15) rises to `value`, visible to all;
  /// wait() returns once `peer`'s has reached `value`. Writes before signal() are visible after the wait().
  virtual Status signal(int channel, uint64_t value) = 0;
  virtual Status wait(int peer, int channel, uint64_t value, std::string_view stage) = 0;
  /// The current value of a peer's counter (never blocks), for schedulers that do other work meanwhile.
  virtual uint64_t signal_value(int peer, int channel) const = 0;

  /// Stops the group: all ranks' present and future calls return this status as `aborted`, naming this rank. First caller wins.
  virtual void abort(const Status& why) = 0;
  /// Ok, or the error that stopped the group (peers' death is looked for as well).
  virtual Status health() = 0;

  /// From now on exchanges, waits and the time spent in them are counted in `recorder` (null: no longer), which must outlive its use here.
  virtual void record_to(Recorder* recorder) = 0;

  /// Bytes of window memory in use, and their high-water mark since reset_peak_window_bytes().
  virtual int64_t window_bytes() const = 0;
  virtual int64_t peak_window_bytes() const = 0;
  virtual void reset_peak_window_bytes() = 0;

  /// What a layer above keeps with this group; made by whoever comes first, gone with the group.
  std::shared_ptr<void>& attachment() { return attachment_; }

 protected:
  Group() = default;

 private:
  std::shared_ptr<void> attachment_;
};

/// The default options, changed by PLAIT_TIMEOUT and PLAIT_SPIN_US. Error: a malformed value.
Result<GroupOptions> group_options_from_env();

/// R groups of the threads engine, one per rank; each must be used by a thread of its own.
Result<std::vector<std::unique_ptr<Group>>> make_thread_groups(int size, const GroupOptions& options = {});

/// Runs body(group) for R ranks as threads of this process and returns their statuses in rank order. A rank that fails aborts the group.
std::vector<Status> run_ranks(int size, const GroupOptions& options, const std::function<Status(Group&)>& body);

/// Who this process is among the ranks of a job.
struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string job;       ///< equal on all ranks of a job, different between jobs
  std::string launcher;  ///< "plait", "torchrun", "mpirun", "srun", or "none"
};
/// Reads PLAIT_RANK/PLAIT_SIZE (set by `plait run --ranks`), RANK/WORLD_SIZE (torchrun), OMPI_COMM_WORLD_* or PMI_* (mpirun),
/// SLURM_PROCID/SLURM_NTASKS (srun), in this order. Error: half-set or contradictory variables, naming them.
Result<Launch> detect_launch();

/// Joins the shm group `group_name` of a job: all `size` processes of one machine that call with the same job and name.
/// Returns when all are there; on time-out the error lists the ranks that did not come.
Result<std::unique_ptr<Group>> join_shm_group(int rank, int size, std::string_view job, std::string_view group_name,
                                              const GroupOptions& options = {});

}  // namespace plait
