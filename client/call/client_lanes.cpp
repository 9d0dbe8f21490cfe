#include "client_lanes.h"

#include <algorithm>

#include "client/base/log.h"
#include "protocol/errors.h"

namespace fargpu::client {

bool ClientLanes::takes(std::uint64_t bytes) {
  if (wanted_ < 2 || bytes < limits::lane_copy_bytes_min) return false;  // one lane would be no better than the session's connection
  std::call_once(opened_, [this] {
    try {
      for (unsigned i = 0; i < wanted_; ++i) lanes_.add(open_(), 1, 1);
      ready_ = true;
    } catch (const std::exception& error) {
      log::warn("large copies go by one connection: {}", error.what());
    }
  });
  return ready_.load(std::memory_order_acquire);
}

bool ClientLanes::send(std::uint32_t transfer, std::span<const std::byte> bytes, const std::function<bool()>& call) {
  struct Progress {
    std::uint64_t missing;
    bool readable = true;
  };
  // Shared with the lanes, which may still hold it when the session is lost.
  const auto progress = std::make_shared<Progress>(Progress{chunks_of(bytes.size())});
  std::unique_lock order(order_);
  if (!call()) return true;
  for (std::uint32_t number = 0; !bytes.empty(); ++number) {
    const auto part = bytes.first(std::min(bytes.size(), limits::lane_chunk_bytes));
    bytes = bytes.subspan(part.size());
    lanes_.send({transfer, number}, part, [this, progress](bool readable) {
      const std::lock_guard lock(mutex_);
      progress->readable = progress->readable && readable;
      if (--progress->missing == 0) changed_.notify_all();
    });
  }
  order.unlock();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || progress->missing == 0; });
  if (progress->missing > 0) {
    const std::string why = why_;
    lock.unlock();
    lanes_.close();  // a lane may be reading these bytes now
    throw ChannelClosed(why);
  }
  return progress->readable;
}

ClientLanes::Arrival::Arrival(ClientLanes& bulk, std::span<std::byte> target) : bulk_(bulk), transfer_(bulk.next()), target_(target) {
  const std::lock_guard lock(bulk_.mutex_);
  bulk_.arrivals_[transfer_] = this;
}

ClientLanes::Arrival::~Arrival() {
  std::unique_lock lock(bulk_.mutex_);
  wanted_ = false;
  bulk_.changed_.wait(lock, [&] { return writing_ == 0 || bulk_.ended_; });
  if (writing_ > 0) {
    lock.unlock();
    bulk_.lanes_.close();
    lock.lock();
  }
  bulk_.arrivals_.erase(transfer_);
}

void ClientLanes::Arrival::wait() {
  std::unique_lock lock(bulk_.mutex_);
  bulk_.changed_.wait(lock, [&] { return bulk_.ended_ || arrived_bytes_ == target_.size(); });
  if (arrived_bytes_ < target_.size()) throw ChannelClosed(bulk_.why_);
}

std::span<std::byte> ClientLanes::place(Chunk chunk, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = arrivals_.find(chunk.transfer);
  if (found == arrivals_.end() || !found->second->wanted_) return {};
  Arrival& arrival = *found->second;
  const std::uint64_t begin = std::uint64_t{chunk.number} * limits::lane_chunk_bytes;
  if (begin > arrival.target_.size() || bytes > arrival.target_.size() - begin)
    throw ProtocolError("a chunk beyond the end of its transfer");
  ++arrival.writing_;
  return arrival.target_.subspan(begin, bytes);
}

void ClientLanes::landed(Chunk chunk, std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = arrivals_.find(chunk.transfer);
  if (found == arrivals_.end()) return;
  --found->second->writing_;
  found->second->arrived_bytes_ += bytes.size();
  changed_.notify_all();
}

// The session may have ended in good order, of which its own connection tells; whoever misses bytes is told this.
void ClientLanes::lost(const std::string& why) { close("a bulk lane is lost: " + why); }

void ClientLanes::close(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) why_ = why;
    ended_ = true;
  }
  changed_.notify_all();
}

}  // namespace fargpu::client
