#include "evictions.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "event_log.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/text.h"
#include "server/worker_link.h"

namespace fargpu::server {

Descriptor make_evicted_file(const std::string& folder) {
  std::string name = folder + "/evicted-XXXXXX";
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.number() >= 0) ::unlink(name.c_str());
  return file;
}

namespace {

RoomRules rules_of(const Settings& settings) {
  return {.host_bytes_max = settings.evicted_bytes_max,
          .disk_bytes_max = settings.evicted_folder.empty() ? 0 : settings.evicted_disk_bytes_max,
          .quantum = std::chrono::seconds(settings.evict_quantum_seconds),
          .idle_after = std::chrono::seconds(settings.evict_idle_seconds)};
}

Rooms::Bytes bytes_of(capnp::List<std::uint64_t>::Reader list) {
  if (list.size() > limits::devices_max) throw ProtocolError("the worker tells of more devices than there can be");
  Rooms::Bytes bytes;
  for (const std::uint64_t one : list) bytes.push_back(one);
  return bytes;
}

Descriptor open_file(const std::string& folder) {
  Descriptor file = make_evicted_file(folder);
  if (file.number() < 0)
    EventLog::warn("no file for an evicted session", {{"folder", folder}, {"reason", std::strerror(errno)}});
  return file;
}

Rooms::State checked(wire::Residency state) {
  if (state > wire::Residency::RETURNING) throw ProtocolError("the worker tells of a state that there is not");
  return state;
}

}  // namespace

Evictions::Evictions(asio::io_context& io, const Settings& settings, Rooms::OnDevices on_devices)
    : rules_(rules_of(settings)),
      rooms_(
          rules_, std::move(on_devices),
          [this, folder = settings.evicted_folder](std::uint64_t session, const Rooms::Order& order) {
            const Descriptor file = order.disk_bytes_max > 0 ? open_file(folder) : Descriptor();
            const auto fill = [&](wire::WorkerMessage::Builder message) {
              auto evict = message.initEvict();
              evict.setNumber(order.number);
              auto leave = evict.initLeaveBytes(static_cast<unsigned>(order.bytes.size()));
              for (unsigned device = 0; device < leave.size(); ++device) leave.set(device, order.bytes[device]);
              evict.setHostBytesMax(order.host_bytes_max);
              evict.setDiskBytesMax(order.disk_bytes_max);
              evict.setPatienceMs(static_cast<std::uint32_t>(order.patience.count()));
            };
            send_link(sessions_.at(session).link, fill, file.number());
          },
          [this](std::uint64_t session, std::uint64_t request, bool made) {
            send_link(sessions_.at(session).link, [&](wire::WorkerMessage::Builder message) {
              auto room = message.initRoom();
              room.setRequest(request);
              room.setMade(made);
            });
          }),
      timer_(io) {}

void Evictions::begin(std::uint64_t session, const Rooms::Session& what, int link) {
  sessions_[session] = {.link = link, .began = now()};
  rooms_.join(session, what, now());
  tick();
}

void Evictions::end(std::uint64_t session) {
  if (sessions_.erase(session) == 0) return;
  rooms_.leave(session);
  tick();
}

void Evictions::heard(std::uint64_t session, wire::ResidencyNews::Reader news) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  const Rooms::State state = checked(news.getState());
  const Rooms::View before = rooms_.view(session);
  const std::string refusal = printable(news.getRefusal().cStr(), 512);
  rooms_.told(session,
              {.state = state,
               .away = bytes_of(news.getAwayBytes()),
               .rest = bytes_of(news.getRestBytes()),
               .host_bytes = news.getHostBytes(),
               .disk_bytes = news.getDiskBytes(),
               .refusal = refusal,
               .busy = news.getBusy(),
               .order = news.getOrder()},
              now());
  const auto view = rooms_.view(session);
  if (state != before.state) {
    Member& member = found->second;
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now() - std::exchange(member.began, now()));
    member.since = static_cast<std::uint64_t>(std::time(nullptr));
    if (state == Rooms::State::EVICTED && refusal.empty()) {
      ++evicted_;
      const auto more = [](std::uint64_t now, std::uint64_t then) { return now - std::min(now, then); };
      EventLog::info("session evicted", {{"session", session},
                                         {"bytes", more(view.away, before.away)},
                                         {"host_bytes", more(view.host_bytes, before.host_bytes)},
                                         {"disk_bytes", more(view.disk_bytes, before.disk_bytes)},
                                         {"ms", took.count()}});
    } else if (before.state == Rooms::State::RETURNING && state == Rooms::State::RESIDENT) {
      ++returned_;
      EventLog::info("session returned", {{"session", session}, {"ms", took.count()}});
    }
  }
  if (!refusal.empty()) EventLog::info("session not evicted", {{"session", session}, {"reason", refusal}});
  tick();
}

void Evictions::wants(std::uint64_t session, wire::RoomWish::Reader wish) {
  rooms_.wants(session, wish.getRequest(), bytes_of(wish.getBytes()), wish.getNeeded(), now());
  tick();
}

std::string Evictions::evict(std::uint64_t session) {
  std::string why_not = rooms_.ask_to_leave(session, now());
  tick();
  return why_not;
}

Evictions::View Evictions::view(std::uint64_t session) const {
  const auto found = sessions_.find(session);
  return {rooms_.view(session), found == sessions_.end() ? 0 : found->second.since};
}

void Evictions::tick() {
  const auto next = rooms_.tick(now());
  if (!next) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(*next);
  timer_.async_wait([this](const asio::error_code& error) {
    if (!error) tick();
  });
}

}  // namespace fargpu::server
