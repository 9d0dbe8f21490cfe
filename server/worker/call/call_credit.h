#pragma once
// The worker's side of the credit for calls: room for those that must wait, kept from the beginning of the session.

#include <cstdint>
#include <optional>
#include <utility>

#include "protocol/credit.h"
#include "server/quota/host_budget.h"

namespace fargpu::server {

class CallCredit;

/// The credit of one call, until it has been executed or dropped: then this goes.
class TakenCredit {
 public:
  TakenCredit() = default;
  TakenCredit(CallCredit& credit, std::uint64_t bytes) : credit_(&credit), bytes_(bytes) {}
  TakenCredit(TakenCredit&& other) noexcept : credit_(std::exchange(other.credit_, nullptr)), bytes_(other.bytes_) {}
  TakenCredit& operator=(TakenCredit&& other) noexcept {
    std::swap(credit_, other.credit_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  inline ~TakenCredit();

  /// Whether there is room for the call.
  explicit operator bool() const { return credit_ != nullptr; }

 private:
  CallCredit* credit_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Used by the executor only.
class CallCredit {
 public:
  /// Reserves a part of what the session may take of the host's memory: less where that is little.
  explicit CallCredit(HostBudget& budget);

  /// What the client is granted; 0 if there is no room even for the least.
  std::uint64_t granted() const { return granted_; }

  /// For a call of so many bytes that has come. Throws ProtocolError if the client has no credit for it.
  TakenCredit take(std::uint64_t bytes);
  /// What the client is to be told now to be settled in all. It hears when that is much, and, if it may be waiting,
  /// when it is some, or `idle` says that nothing is about to make it more.
  std::optional<std::uint64_t> news(bool idle) {
    if (settled_ == told_ || !due(idle)) return std::nullopt;
    return told_ = settled_;
  }

 private:
  friend class TakenCredit;
  bool due(bool idle) const;

  HostCharge reserve_;
  std::uint64_t granted_ = 0;
  std::uint64_t taken_ = 0;    // since the session began
  std::uint64_t settled_ = 0;  // since the session began
  std::uint64_t told_ = 0;     // of that
};

inline TakenCredit::~TakenCredit() {
  if (credit_) credit_->settled_ += bytes_;
}

}  // namespace fargpu::server
