#include "prints.h"

#include <cstdio>

#include "protocol/data.h"

namespace fargpu::server {
namespace {

constexpr auto interval = std::chrono::milliseconds(250);

}  // namespace

// The driver writes what kernels print when somebody waits; events are only asked about here, so this waits for one
// that has fired. CUDA C++ Programming Guide, "Formatted Output". Where no code may print and nothing went wrong there
// is hardly ever something, and every waiting call would pay for the look.
void Prints::flush(CUevent passed, CUresult result, std::chrono::steady_clock::time_point now) {
  if (!printed_) return;
  if (!may_print_ && result == CUDA_SUCCESS && now - looked_at_ < interval) return;
  looked_at_ = now;
  if (may_print_) driver_.cuEventSynchronize(passed);
  send();
}

void Prints::send() {
  if (!printed_) return;
  std::fflush(stdout);
  printed_->output.collect([this](std::span<const std::byte> text) { send_as(1, text); });
  printed_->errors.collect([this](std::span<const std::byte> text) { send_as(2, text); });
}

void Prints::warn(const std::string& what) {
  if (!warned_.insert(what).second) return;
  const std::string text = "fargpu: warning: " + what + "\n";
  send_as(2, std::as_bytes(std::span(text)));
}

void Prints::send_as(std::uint8_t descriptor, std::span<const std::byte> text) {
  output_.control([&](wire::Control::Builder control) {
    auto printed = control.initPrinted();
    printed.setDescriptor(descriptor);
    printed.setText(data_of(text));
  });
}

}  // namespace fargpu::server
