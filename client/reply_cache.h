#pragma once
// Answers that do not change: requests of mode "cached" are sent once.

#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "opcodes.h"

namespace fargpu::client {

class ReplyCache {
 public:
  using Key = std::string;

  /// Opcode, context and the request's bytes: equal requests have equal messages.
  static Key key(Opcode opcode, std::uint32_t context, std::span<const std::byte> message) {
    Key key(6 + message.size(), '\0');
    std::memcpy(key.data(), &opcode, 2);
    std::memcpy(key.data() + 2, &context, 4);
    if (!message.empty()) std::memcpy(key.data() + 6, message.data(), message.size());
    return key;
  }

  bool find(const Key& key, std::vector<std::byte>& reply) const {
    const std::shared_lock lock(mutex_);
    const auto found = replies_.find(key);
    if (found == replies_.end()) return false;
    reply = found->second;
    return true;
  }

  void keep(const Key& key, const std::vector<std::byte>& reply) {
    const std::unique_lock lock(mutex_);
    if (replies_.size() >= entries_max) replies_.clear();
    replies_[key] = reply;
  }

  /// Something these answers depend on has changed.
  void forget(Opcode opcode) {
    const std::unique_lock lock(mutex_);
    std::erase_if(replies_, [&](const auto& entry) { return std::memcmp(entry.first.data(), &opcode, 2) == 0; });
  }
  void clear() {
    const std::unique_lock lock(mutex_);
    replies_.clear();
  }

 private:
  static constexpr std::size_t entries_max = 1u << 16;
  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, std::vector<std::byte>> replies_;
};

}  // namespace fargpu::client
