#include "rdma_choice.h"

#include <map>
#include <mutex>
#include <utility>

#include "client/base/log.h"
#include "client/base/rdma_options.h"
#include "protocol/rdma/devices.h"

namespace fargpu::client {
namespace {

// They stay open as long as the process: sessions come and go.
std::shared_ptr<rdma::OpenedDevices> open_once(const rdma::ToOpen& what) {
  static auto* const mutex = new std::mutex;
  static auto* const opened = new std::map<std::string, std::shared_ptr<rdma::OpenedDevices>>;
  const std::lock_guard lock(*mutex);
  auto& devices = (*opened)[what.devices + " " + what.transports];
  if (!devices) devices = std::make_shared<rdma::OpenedDevices>(rdma::plugin(), what.devices, what.transports);
  return devices;
}

}  // namespace

RdmaChoice choose_rdma(const Config& config, const Channel& connection, bool required) {
  RdmaChoice choice{.required = required};
  const bool automatic = config.transport == Transport::automatic;
  if (!required && !automatic) return choice;
  const sockaddr_storage here = rdma::local_address(connection.descriptor());
  if (here.ss_family == AF_UNSPEC) {
    if (required) choice.why_not = "the host is reached by a Unix socket, which has no network interface";
    return choice;
  }
  std::string told_already;  // by the configuration
  const RdmaOptions options = read_rdma_options(told_already);
  if (!options.networks.contain(rdma::remote_address(connection.descriptor()))) {
    if (required || !rdma::active_ports().empty())
      choice.why_not =
          "it is not allowed to this host, whose address is in none of the networks of FARGPU_RDMA: RDMA is not "
          "encrypted, and all calls and memory are readable by machines that can listen there; name the host's network "
          "in FARGPU_RDMA if it is trusted";
    return choice;
  }
  bool has_device = false;
  try {
    const rdma::ToOpen what = rdma::to_open(rdma::interface_of(rdma::interface_addresses(), here), options.transports);
    has_device = true;
    choice.devices = open_once(what);
  } catch (const rdma::RdmaError& error) {
    if (required || has_device) choice.why_not = error.what();
    else log::debug("no RDMA: {}", error.what());
  }
  return choice;
}

}  // namespace fargpu::client
