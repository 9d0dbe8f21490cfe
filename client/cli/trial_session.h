#pragma once
// A session as a program would have it, for `fargpu doctor`.

#include <cstddef>
#include <string>

#include "client/base/config.h"

namespace fargpu::client::cli {

struct TrialSession {
  std::string error;   ///< why there is none; empty if there was one
  std::string repair;  ///< of the error
  std::size_t devices = 0;
  double ready_ms = 0;
  std::string transport;   ///< by which its calls go, for people
  std::string unmeasured;  ///< why there is none of what follows; empty if there is
  double round_trip_us = 0;
  double out_bytes_per_second = 0;  ///< of a copy to the device
  double in_bytes_per_second = 0;   ///< of one back
  std::size_t lanes = 0;            ///< opened for large copies; 0 where these go by memory or the session's connection
  std::size_t lanes_in_use = 0;     ///< of these, what the line to the host has turned out to need
};

/// Has a session at this host, with a lease of that size, in a child process: a session leaves reserved addresses
/// behind, which the next host's session would find taken.
TrialSession try_session(const PoolHost& host, const LeaseOptions& wish);

}  // namespace fargpu::client::cli
