#include "client_requests.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::server {

void ClientRequests::call(std::uint64_t number, CUresult result, std::function<void()> done) {
  calls_[number] = std::move(done);
  output_.control([&](wire::Control::Builder control) {
    auto callback = control.initCallback();
    callback.setCallback(number);
    callback.setResult(result);
  });
}

void ClientRequests::call_part(std::uint64_t part, std::function<void()> done) {
  constexpr std::uint64_t ours = std::uint64_t{1} << 63;  // the client's numbers begin at 1
  const std::uint64_t number = ours | next_part_call_++;
  calls_[number] = std::move(done);
  output_.control([&](wire::Control::Builder control) {
    auto callback = control.initCallback();
    callback.setCallback(number);
    callback.setPart(part);
  });
}

void ClientRequests::called(wire::CallbackDone::Reader answer) {
  const auto found = calls_.find(answer.getCallback());
  if (found == calls_.end()) throw ProtocolError("a host function was reported that was not asked for");
  const auto done = std::move(found->second);
  calls_.erase(found);
  done();
}

bool ClientRequests::fetch(const Wanted& wanted, std::function<void(std::vector<std::byte>)> done) {
  auto charge = HostCharge::take(budget_, wanted.bytes);
  if (!charge) return false;
  const std::uint64_t id = next_fetch_++;
  fetches_[id] = {{}, wanted.bytes, std::move(*charge), std::move(done)};
  output_.control([&](wire::Control::Builder control) {
    auto pull = control.initPull();
    pull.setPull(id);
    pull.setAddress(wanted.address);
    pull.setBytes(wanted.bytes);
    pull.setPart(wanted.part);
  });
  return true;
}

void ClientRequests::fetched(wire::Pulled::Reader answer, std::span<const std::byte> bytes) {
  const auto found = fetches_.find(answer.getPull());
  if (found == fetches_.end() || bytes.size() > found->second.wanted - found->second.bytes.size())
    throw ProtocolError("bytes were sent that were not asked for");
  Fetch& fetch = found->second;
  fetch.bytes.insert(fetch.bytes.end(), bytes.begin(), bytes.end());
  if (fetch.bytes.size() < fetch.wanted && !answer.getGone()) return;
  Fetch over = std::move(fetch);
  fetches_.erase(found);
  over.done(std::move(over.bytes));
}

void ClientRequests::want(const Chunks& wanted) {
  const auto fill = [&](wire::Control::Builder control) {
    auto message = control.initWanted();
    message.setTransfer(wanted.transfer);
    message.setChunks(wanted.chunks);
    message.setOver(wanted.over);
  };
  if (wanted.in_order) output_.control(fill);
  else output_.control_ahead(fill);
}

void ClientRequests::end_transfer(std::uint32_t transfer) { want({.transfer = transfer, .over = true, .in_order = true}); }

void ClientRequests::deliver(std::uint64_t address, std::span<const std::byte> bytes, Output::Release release) {
  output_.control([&](wire::Control::Builder control) { control.initDeliver().setAddress(address); }, bytes, std::move(release));
}

void ClientRequests::deliver_part(std::uint64_t part, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += limits::bulk_bytes_max) {
    const auto piece = bytes.subspan(at, std::min(limits::bulk_bytes_max, bytes.size() - at));
    auto copy = std::make_shared<std::vector<std::byte>>(piece.begin(), piece.end());  // the next launch may write there meanwhile
    output_.control(
        [&](wire::Control::Builder control) {
          auto deliver = control.initDeliver();
          deliver.setAddress(at);
          deliver.setPart(part);
        },
        *copy, [copy] {});
  }
}

void ClientRequests::release_part(std::uint64_t part) {
  if (part == 0) return;
  output_.control([&](wire::Control::Builder control) { control.initReleased().setPart(part); });
}

}  // namespace fargpu::server
