#include "comm/shm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "base/file_size_signal.h"
#include "base/status_macros.h"
#include "comm/deadline.h"
#include "comm/memory_check.h"

namespace plait::comm::shm {
namespace {

constexpr const char* file_folder = "/dev/shm";

UniqueFd open_memory(Backing backing) {
  if (backing == Backing::memfd) {
    UniqueFd fd(memfd_create("plait-window", MFD_CLOEXEC));
    if (fd || (errno != ENOSYS && errno != EPERM)) return fd;
  }
  return UniqueFd(open(file_folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600));  // has no name at any time
}

/// What kept the system from reserving a file.
std::string limit_text(Backing backing, int error) {
  rlimit file_size{};
  if (error == EFBIG && getrlimit(RLIMIT_FSIZE, &file_size) == 0) {
    return fmt::format("the process may make files of {}: RLIMIT_FSIZE, `ulimit -f`", bytes_text(static_cast<int64_t>(file_size.rlim_cur)));
  }
  struct statvfs state {};
  if (backing == Backing::memfd || statvfs(file_folder, &state) != 0) return "the kernel's memory accounting";
  return fmt::format("{} free in {}", bytes_text(static_cast<int64_t>(state.f_bavail * state.f_frsize)), file_folder);
}

class MappedSegment final : public Segment {
 public:
  using Segment::Segment;
  ~MappedSegment() override { munmap(data(), static_cast<size_t>(bytes())); }
  void discard() override { madvise(data(), static_cast<size_t>(bytes()), MADV_REMOVE); }
};

struct SegmentMessage {
  uint32_t segment_idx;
  uint32_t unused;
  int64_t bytes;
};

}  // namespace

Result<std::shared_ptr<Segment>> map_memory(int fd, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return reservation_failed(bytes, errno, "the process's address space: RLIMIT_AS, vm.max_map_count");
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish: without it the pages are small
  return std::shared_ptr<Segment>(std::make_shared<MappedSegment>(static_cast<std::byte*>(data), bytes));
}

Result<Memory> make_memory(int64_t bytes, Backing backing) {
  PLAIT_RETURN_IF_ERROR(check_available(bytes));
  UniqueFd fd = open_memory(backing);
  if (!fd) return reservation_failed(bytes, errno, "the process's descriptors: RLIMIT_NOFILE, `ulimit -n`");
  PLAIT_ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, map_memory(fd.get(), bytes));  // before the pages, which take time
  const FileSizeSignalBlock block;
  int error = 0;
  do {
    error = fallocate(fd.get(), 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) return reservation_failed(bytes, error, limit_text(backing, error));
  return Memory{std::move(fd), std::move(segment)};
}

Result<std::shared_ptr<Segment>> Store::create(int64_t bytes) {
  PLAIT_ASSIGN_OR_RETURN(Memory memory, make_memory(bytes, backing_));
  unannounced_[memory.segment->data()] = std::move(memory.fd);
  return memory.segment;
}

Status Store::announce(uint32_t segment_idx, const std::shared_ptr<Segment>& segment) {
  const auto found = unannounced_.find(segment->data());
  const UniqueFd fd = std::move(found->second);
  unannounced_.erase(found);
  const SegmentMessage message{segment_idx, 0, segment->bytes()};
  const std::array<int, 1> descriptors = {fd.get()};
  const int64_t deadline = deadline_after(timeout_s_);
  for (size_t peer = 0; peer < mesh_->sockets.size(); ++peer) {
    const UniqueFd& socket = mesh_->sockets[peer];
    if (!socket) continue;
    const int error = send_message(socket.get(), bytes_of(message), descriptors, deadline);
    if (error == 0 || error == ECONNRESET) continue;  // one that is gone is named by the exchange that follows
    return Status(error == ETIMEDOUT ? StatusCode::timeout : StatusCode::unavailable,
                  fmt::format("a window segment cannot be shown to rank {}: {}", peer, std::system_category().message(error)))
        .at_rank(static_cast<int>(peer));
  }
  return {};
}

/// The owner sent the descriptor before it posted the exchange that names the segment, so it has arrived.
Result<std::shared_ptr<Segment>> Store::map(int peer, uint32_t segment_idx) {
  const int socket = mesh_->sockets[static_cast<size_t>(peer)].get();
  auto known = arrived_.find({peer, segment_idx});
  while (known == arrived_.end()) {
    SegmentMessage message{};
    std::vector<UniqueFd> descriptors;
    const int error = receive_message(socket, writable_bytes_of(message), descriptors, 0);
    if (error != 0 || descriptors.empty()) {
      return Status::peer_lost(fmt::format("the window segment of rank {} did not arrive: {}", peer, std::system_category().message(error)))
          .at_rank(peer);
    }
    PLAIT_ASSIGN_OR_RETURN(std::shared_ptr<Segment> mapped, map_memory(descriptors[0].get(), message.bytes));
    known = arrived_.emplace(std::pair(peer, message.segment_idx), std::move(mapped)).first;
    if (message.segment_idx != segment_idx) known = arrived_.end();
  }
  std::shared_ptr<Segment> segment = std::move(known->second);
  arrived_.erase(known);
  return segment;
}

}  // namespace plait::comm::shm
