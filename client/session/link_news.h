#pragma once
// What a worker says of its links, on its way from the session that hears it to the process's links.

#include <cstdint>
#include <string>

namespace fargpu::client {

class Calls;

using LinkLost = void (*)(const Calls& by, std::uint32_t number, const std::string& why);

/// What is done about it, in a process with several sessions.
void at_link_loss(LinkLost action);
/// The worker of these calls has lost a link.
void tell_link_loss(const Calls& by, std::uint32_t number, const std::string& why);

}  // namespace fargpu::client
