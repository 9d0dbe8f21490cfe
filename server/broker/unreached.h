#pragma once
// Hosts of a pool that did not answer clients of some address.

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace fargpu::server {

/// What a client has told is remembered for others of its address: each would wait in vain for some seconds. It is a
/// hint. Where there are too many addresses, one of them is forgotten.
class Unreached {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto remembered_for = std::chrono::minutes(10);
  static constexpr std::size_t addresses_max = 1000, hosts_max = 64;  ///< hosts for one address

  void note(const std::string& address, const std::string& host, Clock::time_point now = Clock::now());
  std::vector<std::string> of(const std::string& address, Clock::time_point now = Clock::now());

 private:
  std::map<std::string, std::map<std::string, Clock::time_point>> hosts_;  // by address; until when
};

}  // namespace fargpu::server
