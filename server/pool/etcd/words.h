#pragma once
// What etcd and gRPC say when something failed, and how endpoints are written.

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <vector>

#include "interface.h"

namespace fargpu::etcd {

struct Address {
  std::string written;  ///< as people know it
  std::string target;   ///< as gRPC wants it
  bool encrypted = false;
};

/// Nothing, with `why`, if one of them is none.
std::optional<std::vector<Address>> read_endpoints(const std::string& text, bool has_ca, std::string& why);

struct Trouble {
  Failure failure = Failure::none;
  std::string why;
  bool elsewhere = false;  ///< another member may do better
  bool not_done = false;   ///< the call certainly had no effect
};

/// Whether it is older than the oldest that a pool can be kept in, etcd 3.4. Of a version in other words nothing is
/// known.
bool is_too_old(const std::string& version);

/// Of a call that failed.
Trouble trouble_of(const grpc::Status& status, const Address& address);
/// Of a watch that etcd has ended.
Trouble trouble_of(const std::string& cancel_reason, const Address& address);

}  // namespace fargpu::etcd
