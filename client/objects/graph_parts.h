#pragma once
// What graphs need of this process when they are launched: functions to call, memory to copy from and to.

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "protocol/copy.h"

namespace fargpu::client {

/// Parts by number. A part is given to the worker with the node that needs it, never changes, and stays until the
/// worker says that no graph needs it any more. The worker can only name parts, so that it reaches nothing of the
/// program that was not offered to it, and in no other direction. Threads: any.
class GraphParts {
 public:
  /// Called by launches, or, if it is the destructor of a user object, once when no graph needs it any more.
  struct Function {
    CUhostFn call = nullptr;
    void* argument = nullptr;
    bool destructor = false;
  };
  /// Memory of an allocation node: the worker does nothing with it but tell when no graph has the node any more.
  struct Allocation {
    std::uint64_t address = 0;
  };
  /// One side of a copy, as the program described it.
  struct Memory {
    CopySide side;
    CopyShape shape;
    bool source = false;  ///< the copy reads it; else it writes it

    std::uint64_t begin() const { return side.begin(); }
    std::uint64_t extent() const { return side.extent(shape); }
    /// The rows, packed; and packed bytes, from an offset on, put where they belong.
    std::vector<std::byte> gather() const;
    void scatter(std::size_t offset, std::span<const std::byte> bytes) const;
  };

  std::uint64_t add(Function function) { return add(Part(function)); }
  std::uint64_t add(Memory memory) { return add(Part(memory)); }
  std::uint64_t add(Allocation allocation) { return add(Part(allocation)); }
  std::optional<Function> function(std::uint64_t number) const { return find<Function>(number); }
  std::optional<Memory> memory(std::uint64_t number) const { return find<Memory>(number); }
  std::optional<Allocation> allocation(std::uint64_t number) const { return find<Allocation>(number); }
  /// The parts that are memory within [base, base + bytes).
  std::map<std::uint64_t, Memory> within(std::uint64_t base, std::uint64_t bytes) const;
  void release(std::uint64_t number);

 private:
  using Part = std::variant<Function, Memory, Allocation>;
  std::uint64_t add(Part part);
  template <class T>
  std::optional<T> find(std::uint64_t number) const {
    const std::lock_guard lock(mutex_);
    const auto found = parts_.find(number);
    if (found == parts_.end() || !std::holds_alternative<T>(found->second)) return std::nullopt;
    return std::get<T>(found->second);
  }

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Part> parts_;
  std::uint64_t next_ = 1;
};

/// Parts for a call that may not come to pass: forgotten unless kept.
class NewParts {
 public:
  explicit NewParts(GraphParts& parts) : parts_(parts) {}
  NewParts(const NewParts&) = delete;
  NewParts& operator=(const NewParts&) = delete;
  ~NewParts() {
    for (const std::uint64_t number : numbers_) parts_.release(number);
  }
  template <class T>
  std::uint64_t add(T part) {
    return numbers_.emplace_back(parts_.add(part));
  }
  void keep() { numbers_.clear(); }
  const std::vector<std::uint64_t>& numbers() const { return numbers_; }

 private:
  GraphParts& parts_;
  std::vector<std::uint64_t> numbers_;
};

}  // namespace fargpu::client
