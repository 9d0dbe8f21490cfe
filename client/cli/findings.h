#pragma once
// What `fargpu doctor` finds, one line a fact: printed as it is found, or kept for one JSON document.

#include <nlohmann/json.hpp>
#include <string>

namespace fargpu::client::cli {

class Findings {
 public:
  explicit Findings(bool json) : json_(json) {}

  /// What follows is of this machine (an empty address) or of the host of this address.
  void begin(const std::string& address);
  void good(const std::string& what);
  void bad(const std::string& what, const std::string& repair);
  /// Nothing is wrong, or nothing that a program meets for certain.
  void note(const std::string& what);
  /// For JSON only: what the lines say, of the place that has begun, for programs.
  void fact(const char* name, nlohmann::ordered_json value);
  /// The sum of it all.
  void end() const;
  int failures() const { return failures_; }

 private:
  void add(const char* kind, const std::string& what, const std::string& repair);

  const bool json_;
  int failures_ = 0;
  nlohmann::ordered_json places_ = nlohmann::ordered_json::array();
};

}  // namespace fargpu::client::cli
