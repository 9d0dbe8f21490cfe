#include "session_record.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/version.h"

namespace fargpu::server {
namespace {

void write_client(const ClientFacts& client, wire::ClientRecord::Builder record) {
  record.setProgram(client.program);
  record.setHostName(client.host_name);
  record.setProcessId(client.process_id);
  record.setPeer(client.peer);
  record.setTenant(client.tenant);
  record.setIdentity(client.identity);
  record.setSharesMemory(client.shares_memory);
  record.setByLoopback(client.by_loopback);
}

void write_lease(const Lease& lease, const std::vector<std::string>& uuids, wire::LeaseRecord::Builder record) {
  record.setId(lease.id);
  auto devices = record.initDevices(static_cast<unsigned>(lease.devices.size()));
  for (unsigned i = 0; i < devices.size(); ++i)
    devices.set(i, data_of(std::as_bytes(std::span(uuids.at(lease.devices[i])))));
  record.setMemoryBytes(lease.memory_bytes);
  record.setComputePercent(lease.compute_percent);
  record.setPriority(lease.priority);
  if (lease.job) record.setJob(data_of(*lease.job));
  record.setMps(lease.mps);
  record.setSmGroups(text_of(lease.sm_groups));
}

}  // namespace

std::uint64_t account_number(int descriptor) {
  struct stat there {};
  if (::fstat(descriptor, &there) != 0) throw SystemError("an account without memory");
  return there.st_ino;
}

void write_record(const SessionFacts& facts, const std::vector<std::string>& uuids,
                  wire::SessionRecord::Builder record) {
  const Lease& lease = facts.lease.lease();
  record.setProcess(facts.process);
  record.setSession(facts.session);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(facts.started.time_since_epoch());
  record.setStartedMs(static_cast<std::uint64_t>(since.count()));
  record.setRelease(our_release);
  record.setLaneKey(data_of(facts.lane_key));
  write_client(facts.client, record.initClient());
  record.setSlot(static_cast<std::uint32_t>(facts.lease.slot()));
  record.setAccount(account_number(lease.account->descriptor()));
  record.setAccountLayout(TenantAccount::layout());
  write_lease(lease, uuids, record.initLease());
}

std::optional<Lease> read_lease(wire::SessionRecord::Reader record, const std::vector<std::string>& uuids) {
  const auto from = record.getLease();
  Lease lease;
  lease.id = from.getId();
  lease.tenant = record.getClient().getTenant().cStr();
  for (const auto uuid : from.getDevices()) {
    const std::string wanted(reinterpret_cast<const char*>(uuid.begin()), uuid.size());
    const auto found = std::find(uuids.begin(), uuids.end(), wanted);
    if (found == uuids.end()) return std::nullopt;
    lease.devices.push_back(static_cast<unsigned>(found - uuids.begin()));
  }
  lease.memory_bytes = from.getMemoryBytes();
  lease.compute_percent = from.getComputePercent();
  lease.priority = from.getPriority();
  if (const auto job = from.getJob(); job.size() == sizeof(JobKey)) {
    lease.job.emplace();
    std::ranges::copy(bytes_of(job), lease.job->begin());
  }
  lease.mps = from.getMps().cStr();
  if (from.getSmGroups().size() != 0) lease.sm_groups = parse_sm_groups(from.getSmGroups().cStr()).value_or(SmGroups{});
  if (!std::is_sorted(lease.devices.begin(), lease.devices.end())) return std::nullopt;  // sessions see them in order
  return lease;
}

ClientFacts read_client(wire::ClientRecord::Reader record) {
  return {.program = record.getProgram().cStr(),
          .host_name = record.getHostName().cStr(),
          .process_id = record.getProcessId(),
          .peer = record.getPeer().cStr(),
          .tenant = record.getTenant().cStr(),
          .identity = record.getIdentity().cStr(),
          .shares_memory = record.getSharesMemory(),
          .by_loopback = record.getByLoopback()};
}

}  // namespace fargpu::server
