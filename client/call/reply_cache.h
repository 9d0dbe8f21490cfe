#pragma once
// Answers that do not change: requests of mode "cached" are sent once.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "opcodes.h"
#include "protocol/limits.h"

namespace fargpu::client {

class ReplyCache {
 public:
  using Key = std::string;

  /// Opcode, the object that is asked about (0: none), context and the request's bytes: equal requests have equal
  /// messages.
  static Key key(Opcode opcode, std::uint32_t context, std::span<const std::byte> message, std::uint64_t subject = 0) {
    Key key(prefix_bytes + message.size(), '\0');
    std::memcpy(key.data(), &opcode, sizeof(opcode));
    std::memcpy(key.data() + sizeof(opcode), &subject, sizeof(subject));
    std::memcpy(key.data() + sizeof(opcode) + sizeof(subject), &context, sizeof(context));
    if (!message.empty()) std::memcpy(key.data() + prefix_bytes, message.data(), message.size());
    return key;
  }

  bool find(const Key& key, std::vector<std::byte>& reply) const {
    const std::shared_lock lock(mutex_);
    const auto found = replies_.find(key);
    if (found == replies_.end()) return false;
    reply = found->second;
    return true;
  }

  /// Grows whenever something is forgotten: to be read before an answer is asked for.
  std::uint64_t changes() const { return changes_.load(); }

  /// An answer that was asked for when there had been so many changes: it may tell of what was before the last one, and
  /// then it is not kept.
  void keep(const Key& key, const std::vector<std::byte>& reply, std::uint64_t changes) {
    const std::unique_lock lock(mutex_);
    if (changes != changes_) return;
    if (replies_.size() >= entries_max) replies_.clear();
    replies_[key] = reply;
  }

  /// Something these answers depend on has changed: of all objects, or of one.
  void forget(Opcode opcode, std::uint64_t subject = 0) {
    char prefix[sizeof(opcode) + sizeof(subject)];
    std::memcpy(prefix, &opcode, sizeof(opcode));
    std::memcpy(prefix + sizeof(opcode), &subject, sizeof(subject));
    const std::size_t bytes = subject ? sizeof(prefix) : sizeof(opcode);
    const std::unique_lock lock(mutex_);
    ++changes_;
    std::erase_if(replies_, [&](const auto& entry) { return std::memcmp(entry.first.data(), prefix, bytes) == 0; });
  }
  void clear() {
    const std::unique_lock lock(mutex_);
    ++changes_;
    replies_.clear();
  }

 private:
  static constexpr std::size_t prefix_bytes = sizeof(Opcode) + sizeof(std::uint64_t) + sizeof(std::uint32_t);
  static constexpr std::size_t entries_max = 1u << 16;
  mutable std::shared_mutex mutex_;
  std::atomic<std::uint64_t> changes_{0};
  std::unordered_map<Key, std::vector<std::byte>> replies_;
};

/// Answers to calls that were not made yet. Each holds once.
class RepliesAhead {
 public:
  bool take(const ReplyCache::Key& key, std::vector<std::byte>& reply) {
    const std::lock_guard lock(mutex_);
    const auto found = replies_.find(key);
    if (found == replies_.end()) return false;
    reply = std::move(found->second);
    replies_.erase(found);
    return true;
  }
  /// No honest worker has more of them waiting than there is room for, or longer ones.
  void keep(const ReplyCache::Key& key, std::span<const std::byte> reply) {
    const std::lock_guard lock(mutex_);
    if (replies_.size() >= limits::ahead_waiting_max || reply.size() > limits::ahead_reply_bytes_max) return;
    replies_.emplace(key, std::vector(reply.begin(), reply.end()));
  }

 private:
  std::mutex mutex_;
  std::unordered_map<ReplyCache::Key, std::vector<std::byte>> replies_;
};

}  // namespace fargpu::client
