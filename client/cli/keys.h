#pragma once
// Single keys that are pressed while a command shows something.

#include <chrono>
#include <optional>

namespace fargpu::client::cli {

/// While it is there the terminal gives keys one by one and does not show them. However it ends, by a signal too, the
/// terminal is as it was before; so it is while the process is stopped. One at a time.
class Keys {
 public:
  /// Does nothing where standard input is no terminal, or one whose keys are for others.
  Keys();
  ~Keys();
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  explicit operator bool() const { return there_; }
  /// The next key, if one is pressed within this time; waits so long where there are none.
  std::optional<char> next(std::chrono::duration<double> time);

 private:
  bool there_ = false;
};

}  // namespace fargpu::client::cli
