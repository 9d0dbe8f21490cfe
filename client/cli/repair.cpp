#include "repair.h"

namespace fargpu::client::cli {

std::string repair_of(const DialError& error) {
  if (!error.repair.empty()) return error.repair;
  if (error.setting) return "unset or correct it";
  if (error.tls)
    return "correct what that host is known by (FARGPU_CA, FARGPU_FINGERPRINT, FARGPU_PSK_FILE), or its name in "
           "FARGPU_POOL";
  if (error.result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) return "install the same version of fargpu on both machines";
  switch (error.reason) {
    case wire::Failure::Reason::NONE:
      return "start fargpud there, open the port in its firewall, or correct FARGPU_POOL";
    case wire::Failure::Reason::NO_CAPACITY:
    case wire::Failure::Reason::DRAINING: return "try again later";
    case wire::Failure::Reason::DENIED:
      return "set the credentials of the client (FARGPU_TOKEN_FILE, FARGPU_CERT and FARGPU_KEY, FARGPU_PSK_FILE), or "
             "ask the operator of that host";
    default: return "look at the log of fargpud there";
  }
}

std::string repair_of_session(const DialError& error) {
  if (error.rdma)
    return "do what that line says, or do without RDMA: take rdma:// out of FARGPU_POOL, and unset FARGPU_TRANSPORT";
  switch (error.reason) {
    case wire::Failure::Reason::DENIED:
      return "do what that line says, or ask for what this host gives (FARGPU_GPUS, FARGPU_MEM, FARGPU_COMPUTE, "
             "FARGPU_PRIORITY; they count here too)";
    case wire::Failure::Reason::NONE: return "look at the log of fargpud there";
    default: return repair_of(error);
  }
}

}  // namespace fargpu::client::cli
