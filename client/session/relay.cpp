#include "relay.h"

#include <utility>

namespace fargpu::client {

std::optional<std::vector<std::byte>> Relay::room(std::size_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return given_up_ || lent_ < pieces_max; });
  if (given_up_) return std::nullopt;
  ++lent_;
  std::vector<std::byte> memory;
  if (!spare_.empty()) {
    memory = std::move(spare_.back());
    spare_.pop_back();
  }
  lock.unlock();
  memory.resize(bytes);
  return memory;
}

void Relay::put(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
  }
  changed_.notify_all();
}

// With the lock held: the relay may be gone as soon as it is let go.
void Relay::end(CUresult result) {
  const std::lock_guard lock(mutex_);
  result_ = result;
  changed_.notify_all();
}

std::optional<Relay::Piece> Relay::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return result_.has_value() || !pieces_.empty(); });
  if (pieces_.empty()) return std::nullopt;
  Piece piece = std::move(pieces_.front());
  pieces_.pop_front();
  return piece;
}

void Relay::give_back(std::vector<std::byte> bytes) {
  {
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(bytes));
    --lent_;
  }
  changed_.notify_all();
}

void Relay::give_up() {
  {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
  }
  changed_.notify_all();
}

CUresult Relay::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return result_.has_value(); });
  return *result_;
}

}  // namespace fargpu::client
