#pragma once
// How sessions of one host hand things to each other. CUDA Driver API, "Memory Management" (cuIpc*) and "Virtual Memory
// Management".

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/share_key.h"

namespace fargpu::server {

/// A file descriptor that is closed when this goes, by a function of its own if it has one.
class Descriptor {
 public:
  using Close = void (*)(int number) noexcept;
  Descriptor() = default;
  explicit Descriptor(int number, Close close = nullptr) : number_(number), close_(close) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)), close_(other.close_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0 && close_) close_(number_);
    else if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
  Close close_ = nullptr;
};

/// Memory of a device, by its descriptor, or an event, by the driver's handle for other processes.
struct SharedThing {
  int device = -1;  ///< the driver's ordinal, equal for all workers of a broker; -1 for an event
  std::uint64_t bytes = 0;
  Descriptor descriptor;
  std::vector<std::byte> event;
};

/// Used by the executor only.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// False if nobody is there to keep it. `came_by`: of memory of another session, the key by which it was fetched;
  /// null for the session's own.
  virtual bool share(const ShareKey& key, const SharedThing& thing, const ShareKey* came_by) = 0;
  virtual void unshare_event(const ShareKey& key) = 0;
  /// The session gives memory up for which it has paid. When this returns, a session that still has it pays.
  virtual void unshare_memory(const ShareKey& key) = 0;
  /// What was shared by this key, by whichever session; nothing if that is none, or nobody answers in time.
  virtual std::optional<SharedThing> fetch(const ShareKey& key) = 0;
  /// Memory that was fetched by this key is held no more. As often as it was fetched.
  virtual void let_go(const ShareKey& key) = 0;
};

}  // namespace fargpu::server
