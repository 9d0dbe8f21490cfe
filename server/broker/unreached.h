#pragma once
// Hosts of a pool that did not answer clients of some machine.

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace fargpu::server {

/// What clients of one machine have told is remembered for others of it: each would wait in vain for some seconds.
class Unreached {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto remembered_for = std::chrono::minutes(10);
  static constexpr std::size_t machines_max = 1000, hosts_max = 64;  ///< hosts of one machine

  void note(const std::string& machine, const std::string& host, Clock::time_point now = Clock::now());
  std::vector<std::string> of(const std::string& machine, Clock::time_point now = Clock::now());

 private:
  void forget_old(Clock::time_point now);

  std::map<std::string, std::map<std::string, Clock::time_point>> hosts_;  // by machine; until when
};

}  // namespace fargpu::server
