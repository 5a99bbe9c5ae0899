// Moving rows between ranks with common memory: the receiver copies from where the senders left them.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "comm/common_group.h"

namespace plait::comm {
namespace {

constexpr int64_t least_piece = 64 << 10;  // below, handing out a task costs more than it saves
constexpr int64_t most_piece = 1 << 20;

struct Piece {
  std::byte* to;
  const std::byte* from;
  int64_t bytes;
};

Status check_block(const RecvBlock& block, std::span<const RegionView> regions, int rank) {
  if (block.peer < 0 || block.peer >= static_cast<int>(regions.size())) {
    return Status::invalid_argument(fmt::format("rank {} receives from rank {}, but {} regions are given", rank, block.peer, regions.size()));
  }
  const RegionRef& ref = regions[static_cast<size_t>(block.peer)].ref();
  const auto available = static_cast<int64_t>(ref.bytes);
  if (block.bytes < 0 || block.offset < 0 || block.bytes > available || block.offset > available - block.bytes) {
    return Status::invalid_argument(fmt::format("rank {} wants bytes {} to {} of rank {}'s region, which has {}", rank, block.offset,
                                                block.offset + block.bytes, block.peer, available))
        .at_rank(block.peer);
  }
  if (block.destination == nullptr) {
    return Status::invalid_argument(fmt::format("rank {} has no place for {} bytes from rank {}", rank, block.bytes, block.peer)).at_rank(rank);
  }
  return {};
}

/// Own rows first, then the peers in turn from the next rank on, so that not all ranks read from the same one. Large blocks are cut.
std::vector<Piece> cut(std::span<const RecvBlock> recv, std::span<const RegionView> regions, int rank, int num_threads) {
  const int size = static_cast<int>(regions.size());
  int64_t total = 0;
  std::vector<const RecvBlock*> order;
  for (const RecvBlock& block : recv) {
    if (block.bytes == 0) continue;
    total += block.bytes;
    order.push_back(&block);
  }
  auto turn = [&](const RecvBlock* block) { return (block->peer - rank + size) % size; };
  std::stable_sort(order.begin(), order.end(), [&](const RecvBlock* a, const RecvBlock* b) { return turn(a) < turn(b); });
  const int64_t piece_bytes = std::clamp(total / (4 * num_threads), least_piece, most_piece);
  std::vector<Piece> pieces;
  for (const RecvBlock* block : order) {
    const std::byte* from = regions[static_cast<size_t>(block->peer)].data() + block->offset;
    for (int64_t begin = 0; begin < block->bytes; begin += piece_bytes) {
      pieces.push_back({block->destination + begin, from + begin, std::min(piece_bytes, block->bytes - begin)});
    }
  }
  return pieces;
}

void copy(const Piece& piece) { std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes)); }

}  // namespace

Status CommonGroup::all_to_all_v(const Context& context, std::string_view stage, const Region&, std::span<const RegionView> regions,
                                 std::span<const SendBlock> send, std::span<const RecvBlock> recv) {
  PLAIT_RETURN_IF_ERROR(protocol_.failure());
  int64_t sent = 0;
  int64_t received = 0;
  int64_t copied = 0;
  for (const SendBlock& block : send) sent += block.peer == rank() ? 0 : block.bytes;
  for (const RecvBlock& block : recv) {
    if (block.bytes == 0) continue;
    Status status = check_block(block, regions, rank());
    if (!status.ok()) return protocol_.fail(std::move(status).in_stage(stage));
    received += block.peer == rank() ? 0 : block.bytes;
    copied += block.bytes;
  }
  Recorder& recorder = context.recorder();
  recorder.add(Counter::bytes_sent, sent);
  recorder.add(Counter::bytes_received, received);
  recorder.add(Counter::bytes_copied, copied);
  const std::vector<Piece> pieces = cut(recv, regions, rank(), context.threads());
  if (copied <= least_piece || context.threads() == 1) {
    for (const Piece& piece : pieces) copy(piece);
  } else {
    context.pool().parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) { copy(pieces[static_cast<size_t>(i)]); });
  }
  return {};
}

}  // namespace plait::comm
