#pragma once
// What a case stands on: the objects and the memory that its call is given, made when they are first named and given
// back when the case is over.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "call.h"

namespace answers {

/// A right call cannot be made here, because what it is given cannot be made.
struct NoFixture : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws NoFixture unless a call that makes a fixture succeeded.
void must(CUresult result, const char* what);
#define MUST(call) ::answers::must((call), #call)

constexpr std::size_t memory_bytes = 4096;      ///< of the fixtures "memory" and "memory2"
constexpr unsigned char memory_byte = 0x5a;     ///< what they hold
constexpr std::size_t piece_bytes = 2u << 20;   ///< of allocations that are mapped
constexpr unsigned char untouched_byte = 0xa5;  ///< what places for outputs hold
constexpr std::size_t room_bytes = 1024;        ///< of zeros behind lists and structs
constexpr std::size_t out_bytes_min = 256;      ///< of a place for an output

class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { end(); }

  /// The value of a fixture; of a number, that. "out" is a place for `bytes` bytes at least.
  Slot make(std::string_view fixture, std::size_t bytes = 0);
  template <class T>
  T get(std::string_view fixture) {
    return make(fixture).get<T>();
  }
  /// A new object of the kind, whatever was made before.
  Slot make_another(std::string_view fixture);
  bool made(std::string_view fixture) const { return made_.count(std::string(fixture)) != 0; }
  /// Memory of the program until the world ends.
  unsigned char* memory(std::size_t bytes, unsigned char fill = 0);
  template <class T>
  T* list(std::initializer_list<T> values) {
    T* at = reinterpret_cast<T*>(roomy(values.size() * sizeof(T)));
    std::size_t i = 0;
    for (const T& value : values) at[i++] = value;
    return at;
  }
  template <class T>
  T* zeroed() {
    return reinterpret_cast<T*>(roomy(sizeof(T)));
  }
  /// Memory with zeros behind it, for calls that are told of more than there is.
  unsigned char* roomy(std::size_t bytes) { return memory(bytes + room_bytes); }
  /// The bytes that lie at an address of memory(), or 0 if none do.
  std::size_t bytes_at(const void* address) const;
  /// What a value is, if it is one of the fixtures or lies in one.
  std::string name_of(std::uint64_t value) const;
  void name(std::uint64_t value, std::string_view name, std::uint64_t bytes = 1);

  void at_end(std::function<void()> ending) { endings_.push_back(std::move(ending)); }
  /// Gives everything back, last first.
  void end();
  /// Something will be given back.
  bool ends() const { return !endings_.empty(); }
  /// Gives nothing back: something of it is gone already.
  void forget() { endings_.clear(); }

 private:
  struct Named {
    std::string name;
    std::uint64_t bytes;
  };
  std::map<std::string, Slot> made_;
  std::map<std::uint64_t, Named> names_;
  std::deque<std::vector<unsigned char>> memory_;
  std::map<const void*, std::size_t> regions_;
  std::vector<std::function<void()>> endings_;
};

/// How a fixture is made.
using Maker = Slot (*)(World&);
/// Null if there is none of the name.
Maker maker_of(std::string_view fixture);

/// The primary context of device 0, current to the calling thread.
CUcontext primary_context();

}  // namespace answers
