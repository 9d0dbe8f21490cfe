#pragma once
// Text for the person who runs the program: what kernels and the driver print, and warnings of the worker's own.

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "driver_table.h"
#include "output.h"
#include "captured_output.h"

namespace fargpu::server {

/// Used by the executor only.
class Prints {
 public:
  /// `printed` is null where nothing that kernels print is sent.
  Prints(DriverTable& driver, Output& output, PrintedByKernels* printed)
      : driver_(driver), output_(output), printed_(printed) {}

  /// Code is about to be loaded that may call printf or assert.
  void note_printing() { may_print_ = true; }
  /// An event has fired, at `now`: what was printed before it is sent.
  void flush(CUevent passed, CUresult result, std::chrono::steady_clock::time_point now);
  /// Sends what was printed.
  void send();
  /// A line for the person who runs the program, on its standard error; the same words once.
  void warn(const std::string& what);

 private:
  void send_as(std::uint8_t descriptor, std::span<const std::byte> text);

  DriverTable& driver_;
  Output& output_;
  PrintedByKernels* const printed_;
  bool may_print_ = false;
  std::chrono::steady_clock::time_point looked_at_{};  // behind an answer
  std::set<std::string> warned_;
};

}  // namespace fargpu::server
