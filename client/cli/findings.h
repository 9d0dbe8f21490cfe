#pragma once
// What `fargpu doctor` finds, one line a fact.

#include <string>

namespace fargpu::client::cli {

class Findings {
 public:
  void good(const std::string& what);
  void bad(const std::string& what, const std::string& repair);
  /// Nothing is wrong, or nothing that a program meets for certain.
  void note(const std::string& what);
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

}  // namespace fargpu::client::cli
