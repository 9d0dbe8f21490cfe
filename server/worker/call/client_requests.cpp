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

void ClientRequests::skip(std::uint64_t number, CUresult result) {
  output_.control([&](wire::Control::Builder control) {
    auto callback = control.initCallback();
    callback.setCallback(number);
    callback.setResult(result);
    callback.setSkipped(true);
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

void ClientRequests::fetch(const Wanted& wanted, std::function<void(CUresult, const std::vector<std::byte>&)> done) {
  waiting_.push_back({wanted, std::move(done)});
  begin_waiting();
}

// In the order in which they were asked for, so that a large one is not passed by small ones for ever.
bool ClientRequests::begin_waiting() {
  bool begun = false;
  while (!waiting_.empty()) {
    const std::uint64_t bytes = waiting_.front().wanted.bytes;
    auto charge = HostCharge::try_take(budget_, bytes);
    if (!charge && kept_ > 0) break;  // there is room again when those are done
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    begun = true;
    if (!charge && bytes > limits::bulk_bytes_max && !(charge = HostCharge::take(budget_, bytes)))
      next.done(CUDA_ERROR_OUT_OF_MEMORY, {});
    else keep(std::move(next), charge ? std::move(*charge) : HostCharge());
  }
  return begun;
}

void ClientRequests::keep(Waiting fetch, HostCharge charge) {
  struct Kept {
    std::vector<std::byte> bytes;
    HostCharge charge;
  };
  auto kept = std::make_shared<Kept>(Kept{{}, std::move(charge)});
  ++kept_;
  ask(fetch.wanted, {.wanted = fetch.wanted.bytes,
                     .take =
                         [kept](std::uint64_t, std::span<const std::byte> more) {
                           kept->bytes.insert(kept->bytes.end(), more.begin(), more.end());
                         },
                     .done =
                         [this, kept, done = std::move(fetch.done)](std::uint64_t) {
                           --kept_;
                           done(CUDA_SUCCESS, kept->bytes);
                         }});
}

void ClientRequests::fetch_part(std::uint64_t part, std::uint64_t bytes,
                                std::function<void(std::uint64_t, std::span<const std::byte>)> take,
                                std::function<void(std::uint64_t)> done) {
  ask({.part = part, .bytes = bytes}, {.wanted = bytes, .take = std::move(take), .done = std::move(done)});
}

void ClientRequests::ask(const Wanted& wanted, Fetch fetch) {
  const std::uint64_t id = next_fetch_++;
  fetches_[id] = std::move(fetch);
  output_.control([&](wire::Control::Builder control) {
    auto pull = control.initPull();
    pull.setPull(id);
    pull.setAddress(wanted.address);
    pull.setBytes(wanted.bytes);
    pull.setPart(wanted.part);
  });
}

void ClientRequests::fetched(wire::Pulled::Reader answer, std::span<const std::byte> bytes) {
  const auto found = fetches_.find(answer.getPull());
  if (found == fetches_.end() || bytes.size() > found->second.wanted - found->second.received)
    throw ProtocolError("bytes were sent that were not asked for");
  Fetch& fetch = found->second;
  fetch.take(fetch.received, bytes);
  fetch.received += bytes.size();
  if (fetch.received < fetch.wanted && !answer.getGone()) return;
  const Fetch over = std::move(fetch);
  fetches_.erase(found);
  over.done(over.received);
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

void ClientRequests::event_passed(std::uint64_t event, std::uint32_t query, bool failed) {
  output_.control([&](wire::Control::Builder control) {
    auto passed = control.initEventPassed();
    passed.setEvent(event);
    passed.setCall(query);
    passed.setFailed(failed);
  });
}

void ClientRequests::end_transfer(std::uint32_t transfer) {
  want({.transfer = transfer, .over = true, .in_order = true});
}

std::uint64_t ClientRequests::deliver(std::uint64_t address, std::span<const std::byte> bytes, Output::Release release,
                                      std::uint32_t copy) {
  output_.control(
      [&](wire::Control::Builder control) {
        auto deliver = control.initDeliver();
        deliver.setAddress(address);
        deliver.setCopy(copy);
      },
      bytes, std::move(release));
  return ++deliveries_;
}

void ClientRequests::end_delivery(std::uint32_t copy) {
  if (copy == 0) return;
  output_.control([&](wire::Control::Builder control) {
    auto deliver = control.initDeliver();
    deliver.setCopy(copy);
    deliver.setOver(true);
  });
  ++deliveries_;
}

void ClientRequests::deliver_part(std::uint64_t part, std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += limits::bulk_bytes_max) {
    const auto piece = bytes.subspan(at, std::min(limits::bulk_bytes_max, bytes.size() - at));
    auto copy = std::make_shared<std::vector<std::byte>>(piece.begin(),
                                                         piece.end());  // the next launch may write there meanwhile
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
