#pragma once
// Why no session could be had.

#include <cuda.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control.capnp.h"

namespace fargpu::client {

/// As a CUresult and one line for the person at the terminal.
struct DialError : std::runtime_error {
  DialError(CUresult result, const std::string& text, wire::Failure::Reason reason = wire::Failure::Reason::NONE)
      : std::runtime_error(text), result(result), reason(reason) {}
  /// What this process was told is wrong, whatever the host thinks: the text names the variable.
  static DialError of_setting(const std::string& text) {
    DialError error(CUDA_ERROR_NOT_PERMITTED, text);
    error.setting = true;
    return error;
  }
  /// There is no TLS with the host: one of the two does not know the other.
  static DialError of_tls(const std::string& text) {
    DialError error(CUDA_ERROR_NOT_PERMITTED, text, wire::Failure::Reason::DENIED);
    error.tls = true;
    return error;
  }
  /// There is no RDMA, and nothing else will do.
  static DialError of_rdma(const std::string& text) {
    DialError error(CUDA_ERROR_SYSTEM_NOT_READY, text);
    error.rdma = true;
    return error;
  }
  CUresult result;
  wire::Failure::Reason reason;  ///< the broker's, if it gave one
  bool setting = false;
  bool unknown_name = false;  ///< there is no host of that name
  bool tls = false;
  bool rdma = false;
  bool another_host = false;    ///< not the one that was meant answers there
  bool nobody_listens = false;  ///< the machine is there, and no broker
  /// Whether the line to the host broke, which says nothing of what was asked for: before the host had said anything,
  /// as a service of another kind may do it, or later; or the host's fargpud ended, as before the next one starts.
  enum class Line { whole, broke_at_hello, broke, ended } line = Line::whole;
  std::string unreached;  ///< the name of a host that its pool has chosen, and that does not answer; else empty
  std::string repair;     ///< what mends just this, for `fargpu doctor`; empty where its reason tells

  /// This failure in other words.
  DialError told_as(const std::string& text) const {
    DialError error = *this;
    static_cast<std::runtime_error&>(error) = std::runtime_error(text);
    return error;
  }
  DialError by_line(Line how) && {
    line = how;
    return std::move(*this);
  }
  DialError with_repair(const std::string& text) && {
    repair = text;
    return std::move(*this);
  }
};

/// What ends a message that `fargpu doctor` can say more about.
constexpr std::string_view doctor_hint = " `fargpu doctor` tells more";

/// Why none of the pool's hosts can be used: of each what was wrong, in the order in which they were asked. The result
/// is of the one that may serve soonest: one that is full, then one that fails, then one that refuses for good.
DialError none_usable(const std::vector<DialError>& errors);

}  // namespace fargpu::client
