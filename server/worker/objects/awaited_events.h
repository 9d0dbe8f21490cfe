#pragma once
// Events of the program that somebody waits for: they outlive their destruction by the program for as long as that
// lasts.

#include <cuda.h>

#include <cstdint>
#include <unordered_map>

#include "driver_table.h"
#include "objects.h"

namespace fargpu::server {

/// Used by the executor only.
class AwaitedEvents {
 public:
  AwaitedEvents(DriverTable& driver, Objects& objects) : driver_(driver), objects_(objects) {}

  /// An event is being waited for, or not any more.
  void begin(std::uint64_t event) { ++waits_[event].waiters; }
  void end(std::uint64_t event);
  /// A query, the call of this number, was answered that the event has not happened, or wants no answer: the client is
  /// told when it has. False if somebody looks for that already.
  bool watch(std::uint64_t event, std::uint32_t call);
  bool watches(std::uint64_t event) const;
  /// It has happened. The number of the last such query.
  std::uint32_t watched(std::uint64_t event);
  /// Destroys it now, or when the last wait for it is over.
  CUresult destroy(std::uint64_t event);

 private:
  struct Wait {
    int waiters = 0;
    bool destroyed = false;
    bool watched = false;
    std::uint32_t query = 0;  // watched: the last such one
  };

  DriverTable& driver_;
  Objects& objects_;
  std::unordered_map<std::uint64_t, Wait> waits_;
};

}  // namespace fargpu::server
