#include "pool_members.h"

#include <fmt/format.h>

#include "client/connect/placement.h"
#include "protocol/text.h"

namespace fargpu::client::cli {

PoolMember read_member(wire::PoolHost::Reader member, const ControlConnection& by) {
  PoolMember result;
  result.name = printable(member.getName().cStr());
  result.address = printable(member.getAddress().cStr(), 300);
  result.identity = member.getIdentity().cStr();
  std::string why;
  result.host = told_host(member.getAddress().cStr(), by, why);
  if (!result.host) result.unfit = fmt::format("'{}' {}", result.address, why);
  return result;
}

std::unique_ptr<ControlConnection> connect_to(const PoolMember& member) {
  if (!member.host) throw DialError(CUDA_ERROR_NOT_PERMITTED, member.unfit);
  Placement::Part part;
  part.host = *member.host;
  part.identity = member.identity;
  return connect_to_part(part, ControlConnection::For::host);
}

}  // namespace fargpu::client::cli
