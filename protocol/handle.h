#pragma once
// Handles as programs and the wire see them. A handle value holds its kind, an index and a generation, so that a stale
// or foreign one is recognised without being followed. Values are multiples of 16, look like user-space pointers, and
// are never 0, 1, 2 or -1: programs compare, hash and print them, and PyTorch keeps tags in the low bits of stream
// handles.

#include <cstdint>
#include <type_traits>

#include "handle_kinds.h"  // generated: enum class HandleKind

namespace fargpu {

/// bits 4..23 index, 24..35 generation, 36..41 kind, 42..44 origin, 45..46 set. The origin is the number of the session
/// among those of its process: of two sessions, neither has a handle of the other.
class Handle {
 public:
  static constexpr std::uint32_t index_bits = 20;
  static constexpr std::uint32_t generation_bits = 12;
  /// Indices from here on are given by the worker, those below by the client; so neither asks the other for a free one.
  static constexpr std::uint32_t worker_index_first = 1u << (index_bits - 1);
  static constexpr std::uint32_t index_max = (1u << index_bits) - 1;
  static constexpr std::uint32_t generation_max = (1u << generation_bits) - 1;
  static constexpr unsigned origin_max = 7;

  constexpr Handle() = default;
  constexpr explicit Handle(std::uint64_t value) : value_(value) {}
  constexpr Handle(HandleKind kind, std::uint32_t index, std::uint32_t generation, unsigned origin = 0)
      : value_(base(kind, origin) | static_cast<std::uint64_t>(generation & generation_max) << 24 |
               static_cast<std::uint64_t>(index & index_max) << 4) {}
  /// The handle whose id(), kind and origin are these.
  static constexpr Handle from_id(HandleKind kind, std::uint32_t id, unsigned origin = 0) {
    return Handle(base(kind, origin) | static_cast<std::uint64_t>(id) << 4);
  }

  /// As a handle of any session.
  constexpr bool well_formed(HandleKind kind) const { return well_formed(kind, origin()); }
  constexpr bool well_formed(HandleKind kind, unsigned origin) const {
    return (value_ & ~(std::uint64_t{0xFFFFFFFF} << 4)) == base(kind, origin);
  }
  constexpr std::uint64_t value() const { return value_; }
  /// Index and generation: enough where the kind is known.
  constexpr std::uint32_t id() const { return static_cast<std::uint32_t>(value_ >> 4); }
  constexpr std::uint32_t index() const { return id() & index_max; }
  constexpr std::uint32_t generation() const { return id() >> index_bits; }
  constexpr HandleKind kind() const { return static_cast<HandleKind>(value_ >> 36 & 0x3F); }
  constexpr unsigned origin() const { return static_cast<unsigned>(value_ >> 42) & origin_max; }
  constexpr explicit operator bool() const { return value_ != 0; }
  friend constexpr bool operator==(Handle, Handle) = default;

 private:
  static constexpr std::uint64_t base(HandleKind kind, unsigned origin) {
    return std::uint64_t{3} << 45 | static_cast<std::uint64_t>(origin & origin_max) << 42 |
           static_cast<std::uint64_t>(kind) << 36;
  }
  std::uint64_t value_ = 0;
};

/// Stands on the wire for the legacy stream of the context of the call.
inline constexpr std::uint64_t legacy_stream = 1;

/// CUDA's opaque pointers (and integer handles) to and from handles.
template <class T>
Handle handle_of(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return Handle(reinterpret_cast<std::uintptr_t>(value));
  } else {
    return Handle(value);
  }
}
template <class T>
T handle_cast(Handle handle) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(static_cast<std::uintptr_t>(handle.value()));
  } else {
    return static_cast<T>(handle.value());
  }
}

}  // namespace fargpu
