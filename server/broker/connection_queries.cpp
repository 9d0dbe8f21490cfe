// What clients ask of the host itself, and what administrators change.

#include "connection.h"
#include "contents.h"
#include "event_log.h"
#include "pool_status.h"
#include "protocol/text.h"

namespace fargpu::server {

asio::awaitable<void> Broker::Connection::on_status() {
  co_await broker_.device_watch_.refresh(broker_.workers_.device_uuids());
  // A job is told of its host alone.
  const bool of_pool = broker_.pool_ && !job_;
  // Not `? co_await :`, by which g++ 12 destroys what it waits for twice.
  std::shared_ptr<const pool::PoolView> pool;
  if (of_pool) pool = co_await broker_.pool_->view();
  const std::shared_ptr<const Lease> seen = broker_.lease_of(client_, job_);
  const Viewer viewer{client_.tenant, administers(), seen.get(), known_by_};
  co_await channel_.send([&](wire::Control::Builder answer) {
    auto status = answer.initStatus();
    broker_.status_.write(status, viewer, broker_.state_);
    if (of_pool && !seen) write_pool(*broker_.pool_, pool.get(), viewer, status.initPool());
  });
}

asio::awaitable<void> Broker::Connection::on_contents(wire::ContentsRequest::Reader request) {
  const std::string wanted = printable(request.getTenant().cStr());
  const std::string tenant = wanted.empty() ? client_.tenant : wanted;
  std::string refusal;
  bool allowed = true;
  if (tenant.empty()) {
    refusal = "this client is of no tenant here; name one with --tenant";
  } else if (tenant != client_.tenant && !administers()) {
    allowed = false;
    refusal = "only administrators of this host may look after another tenant's contents";
  } else if (!broker_.leases_.tenants().find(tenant)) {
    refusal = "this host has no tenant '" + tenant + "'";
  }
  const auto folder = refusal.empty() ? content_folder(broker_.settings_, tenant) : std::filesystem::path();
  const FolderAccount::Used kept = kept_contents(folder);
  if (refusal.empty() && request.getClear()) {
    refusal = clear_contents(folder);
    EventLog::info("contents cleared", {{"tenant", tenant},
                                        {"peer", client_.peer},
                                        {"identity", client_.identity},
                                        {"bytes", kept.bytes},
                                        {"failure", refusal}});
  }
  co_await channel_.send([&](wire::Control::Builder control) {
    auto answer = control.initContentsAnswer();
    auto failure = answer.initFailure();
    if (!refusal.empty()) {
      failure.setReason(allowed ? wire::Failure::Reason::BAD_REQUEST : wire::Failure::Reason::DENIED);
      failure.setText(refusal);
      return;
    }
    answer.setTenant(tenant);
    answer.setBytes(kept.bytes);
    answer.setBlocks(kept.files);
    answer.setBytesMax(folder.empty() ? 0 : broker_.settings_.content_bytes_max);
    const auto known = broker_.workers_.totals().find(tenant);
    if (known == broker_.workers_.totals().end()) return;
    answer.setKnownBytes(known->second.known_bytes);
    answer.setKeptBytes(known->second.kept_bytes);
  });
}

asio::awaitable<void> Broker::Connection::on_administration(wire::AdministrationRequest::Reader request) {
  const bool allowed = administers();
  std::string refusal;
  if (!allowed)
    refusal =
        "only administrators of this host may do this: root and the user of fargpud at its Unix socket, tenants that "
        "the settings name so or, where they name no tenants, every user of the GPU host itself";
  else if (request.isPoolTenant()) refusal = co_await set_pool_tenant(request.getPoolTenant());
  else refusal = broker_.administer(client_, request);
  if (refusal.empty() && request.isEvict()) refusal = co_await outcome_of_eviction(request.getEvict());
  // It is seen by the next look.
  if (refusal.empty() && broker_.pool_ && (request.isDrain() || request.isResume()))
    co_await broker_.pool_->member().shown();
  if (!refusal.empty())
    EventLog::warn(
        "administration refused",
        {{"peer", client_.peer}, {"tenant", client_.tenant}, {"identity", client_.identity}, {"reason", refusal}});
  co_await channel_.send([&](wire::Control::Builder control) {
    auto failure = control.initAdministrationAnswer().initFailure();
    if (refusal.empty()) return;
    failure.setReason(allowed ? wire::Failure::Reason::BAD_REQUEST : wire::Failure::Reason::DENIED);
    failure.setText(refusal);
  });
}

asio::awaitable<std::string> Broker::Connection::set_pool_tenant(wire::PoolTenant::Reader wanted) {
  std::optional<pool::TenantRecord> limits;
  if (!wanted.getForget()) {
    limits.emplace();
    limits->limits = {wanted.getMemoryBytes(), wanted.getComputePercent(), wanted.getLeases()};
    limits->weight = wanted.getWeight() == 0 ? limits->weight : wanted.getWeight();
  }
  co_return co_await broker_.set_pool_tenant(client_, wanted.getName().cStr(), limits);
}

// What comes of an eviction; the session's work may put it off.
asio::awaitable<std::string> Broker::Connection::outcome_of_eviction(std::uint64_t session) {
  asio::steady_timer timer(broker_.io_);
  while (true) {
    if (const auto outcome = broker_.workers_.evictions().outcome(session)) {
      co_return outcome->empty() ? "" : fmt::format("session {} stays: {}", session, *outcome);
    }
    expire_after(control_idle_max);
    timer.expires_after(std::chrono::milliseconds(5));
    co_await timer.async_wait(asio::use_awaitable);
  }
}

}  // namespace fargpu::server
