#include "devices.h"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <system_error>

#include "context.h"
#include "protocol/text.h"

namespace fargpu::rdma {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool active(const fs::path& port) { return line_of(port / "state").find("ACTIVE") != std::string::npos; }

// Whether an address of the port is of this interface, as RoCE has them.
bool has_address_of(const fs::path& port, const std::string& interface) {
  for (const fs::path& entry : entries_of(port / "gid_attrs" / "ndevs"))
    if (line_of(entry) == interface) return true;
  return false;
}

// Whether the interface is the port's own: that of IP over InfiniBand, or of Ethernet.
bool is_own(const fs::path& sys, const std::string& interface, const std::string& device, const std::string& port) {
  std::error_code error;
  const fs::path net = sys / "class" / "net" / interface;
  if (!fs::exists(net / "device" / "infiniband" / device, error)) return false;
  const std::string number = line_of(net / "dev_port");
  return number.empty() || std::to_string(std::atoi(number.c_str()) + 1) == port;
}

template <class Wanted>
std::vector<std::string> ports_where(const fs::path& sys, Wanted&& wanted) {
  std::vector<std::string> ports;
  for (const fs::path& device : entries_of(sys / "class" / "infiniband")) {
    for (const fs::path& port : entries_of(device / "ports")) {
      const std::string name = device.filename(), number = port.filename();
      if (active(port) && wanted(port, name, number)) ports.push_back(name + ":" + number);
    }
  }
  return ports;
}

bool same_address(const sockaddr_storage& one, const sockaddr_storage& other) {
  if (one.ss_family != other.ss_family) return false;
  if (one.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(one).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(other).sin_addr.s_addr;
  return one.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(one).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(other).sin6_addr, sizeof(in6_addr)) == 0;
}

// A socket of IPv6 may have addresses of IPv4.
sockaddr_storage plain(sockaddr_storage address) {
  if (address.ss_family != AF_INET6) return address;
  const in6_addr v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&v6)) return address;
  address = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  v4.sin_family = AF_INET;
  std::memcpy(&v4.sin_addr, &v6.s6_addr[12], sizeof(v4.sin_addr));
  return address;
}

template <class Ask>
sockaddr_storage address_by(Ask&& ask, int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (ask(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      (address.ss_family != AF_INET && address.ss_family != AF_INET6))
    return {};
  return plain(address);
}

}  // namespace

bool parse_transports(const std::string& text, Transports& transports) {
  if (text == "cards") transports = Transports::cards;
  else if (text == "tcp") transports = Transports::tcp;
  else if (text == "memory") transports = Transports::memory;
  else return false;
  return true;
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> all;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return all;
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    if (!one->ifa_addr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress found;
    std::memcpy(&found.address, one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    found.interface = one->ifa_name;
    all.push_back(std::move(found));
  }
  ::freeifaddrs(list);
  return all;
}

std::string interface_of(const std::vector<InterfaceAddress>& all, const sockaddr_storage& address) {
  for (const InterfaceAddress& one : all)
    if (same_address(one.address, address)) return one.interface;
  return {};
}

std::vector<std::string> rdma_ports_of(const std::string& interface, const fs::path& sys) {
  return ports_where(sys, [&](const fs::path& port, const std::string& device, const std::string& number) {
    return has_address_of(port, interface) || is_own(sys, interface, device, number);
  });
}

std::vector<std::string> active_ports(const fs::path& sys) {
  return ports_where(sys, [](const fs::path&, const std::string&, const std::string&) { return true; });
}

ToOpen to_open(const std::string& interface, Transports transports, const fs::path& sys) {
  if (transports == Transports::memory) return {"all", "sysv"};
  if (interface.empty()) throw RdmaError("the connection's address belongs to no network interface");
  if (transports == Transports::tcp) return {interface, "tcp"};
  ToOpen open{"", "rc,dc,ud"};
  for (const std::string& port : rdma_ports_of(interface, sys))
    open.devices += (open.devices.empty() ? "" : ",") + port;
  if (open.devices.empty()) {
    throw RdmaError("the network interface " + printable(interface, 64) +
                    " has no RDMA card with an active port (`rdma link` or `ibstat` shows cards; the drivers are "
                    "rdma-core's)");
  }
  return open;
}

sockaddr_storage local_address(int descriptor) { return address_by(::getsockname, descriptor); }
sockaddr_storage remote_address(int descriptor) { return address_by(::getpeername, descriptor); }

}  // namespace fargpu::rdma
