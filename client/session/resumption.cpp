#include "resumption.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "client/base/life.h"
#include "client/base/log.h"
#include "client/base/threads.h"
#include "client/call/trace.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/text.h"
#include "protocol/tls.h"
#include "protocol/words.h"

namespace fargpu::client {
namespace {

using Clock = ResumableChannel::Clock;

constexpr auto pause_least = std::chrono::milliseconds(20), pause_most = std::chrono::milliseconds(1000);
/// A broker that is restarted or upgraded is back after so many times the time for which its worker waits.
constexpr int broker_away_max = 10;
/// A connection that breaks within this time, and has carried nothing, is of no use. UCX notices after some ten seconds
/// that what it has put does not arrive.
constexpr auto soon = std::chrono::seconds(30);
/// What the worker said last may tell more than that it is gone.
constexpr auto last_words_max = std::chrono::seconds(1);

/// The session is over at the host.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check(wire::Failure::Reader failure) {
  const std::string text = printable(failure.getText().cStr(), 512);
  switch (failure.getReason()) {
    case wire::Failure::Reason::NONE: return;
    case wire::Failure::Reason::NO_CAPACITY: throw SystemError(text);
    default: throw Refused(text);
  }
}

/// Connections come about, and carry nothing.
struct Useless : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string seconds_since(Clock::time_point begin) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(Clock::now() - begin).count());
}

}  // namespace

std::shared_ptr<Channel> Resumption::wrap(std::shared_ptr<Channel> connection, std::uint32_t number) {
  watch_connection(*connection);
  const auto channel = std::make_shared<ResumableChannel>(
      std::move(connection), number == 0 ? limits::resume_log_bytes : limits::resume_lane_log_bytes,
      ResumableChannel::Hooks{.broke =
                                  [weak = weak_from_this(), number](const ResumableChannel::Break& what) {
                                    if (const auto self = weak.lock()) self->broke(number, what);
                                  },
                              .impatience = {}});
  {
    const std::lock_guard lock(mutex_);
    links_[number] = {.channel = channel, .secret = terms_.secret, .since = Clock::now()};
  }
  // By this the worker knows that its answer has come, and a client that can come back.
  if (number == 0) channel->show_up();
  return channel;
}

std::uint32_t Resumption::next_lane() {
  const std::lock_guard lock(mutex_);
  return ++lanes_;
}

Resumption::Link Resumption::link(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return links_[number];
}

void Resumption::give_up(std::uint32_t number, const std::string& why) noexcept {
  std::shared_ptr<ResumableChannel> channel;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = links_.find(number); found != links_.end()) channel = found->second.channel.lock();
  }
  if (channel) channel->give_up(why);
}

// A program that ends does not wait for a connection only to say so.
void Resumption::broke(std::uint32_t number, const ResumableChannel::Break& what) noexcept {
  try {
    if (life() == Life::ended) return give_up(number, what.why);
    start_thread("fargpu-resume", [self = shared_from_this(), number, what] {
      try {
        self->come_back(number, what);
      } catch (const std::exception& error) {
        self->give_up(number, words(error.what()));
      }
    });
  } catch (const std::exception& error) {
    give_up(number, words(error.what()));
  }
}

void Resumption::come_back(std::uint32_t number, const ResumableChannel::Break& what) {
  const auto channel = link(number).channel.lock();
  if (!channel) return;
  const bool whole_session = number == 0;
  const auto tell = [&](const std::string& text) {
    trace::note(text);
    if (whole_session) log::warn("{}", text);
    else log::info("{}", text);
  };
  const std::string name = whole_session ? fmt::format("session {}", terms_.session)
                                         : fmt::format("bulk lane {} of session {}", number, terms_.session);
  bool told = false;
  const auto begin = [&] {
    if (std::exchange(told, true)) return;
    tell(fmt::format("{}: the connection to {} broke ({}); its calls wait until it is back", name, terms_.host,
                     what.why));
  };
  // Attempts while no broker is there do not count at first: it may be restarted.
  Clock::duration counted{};
  auto pause = std::chrono::milliseconds(pause_least);
  if (const unsigned useless = link(number).useless; useless > 0) {
    pause = std::min(pause_least * (1 << std::min(useless, 10u)), pause_most);
    std::this_thread::sleep_for(pause);
  }
  while (!channel->over()) {
    const auto attempt = Clock::now();
    bool counts = true;
    std::string why;
    try {
      connect_again(*channel, number, what);
      begin();
      tell(fmt::format("{} is resumed after {}", name, seconds_since(what.at)));
      if (whole_session) suspect_lanes(what.at);
      return;
    } catch (const Refused& refused) {
      // What the worker said last is still being read, perhaps.
      for (const auto end = Clock::now() + last_words_max;
           !channel->over() && !channel->all_taken() && Clock::now() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      log::info("{} cannot be resumed: {}", name, refused.what());
      channel->give_up(what.why);
      return;
    } catch (const Useless& useless) {
      return channel->give_up(useless.what());
    } catch (const DialError& error) {
      counts = !error.nobody_listens;
      why = error.what();
    } catch (const kj::Exception& error) {
      why = error.getDescription().cStr();
    } catch (const std::exception& error) {
      why = error.what();
    }
    if (channel->over()) return;
    begin();
    log::debug("{}: {}", name, why);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, pause_most);
    if (counts) counted += Clock::now() - attempt;
    if (counted > terms_.time + limits::connect_timeout || Clock::now() - what.at > broker_away_max * terms_.time)
      return channel->give_up(
          fmt::format("{}, and no connection came about for {}: {}", what.why, seconds_since(what.at), why));
  }
}

// A connection that breaks soon and has carried nothing is as none: the time for which one is waited goes on.
// `pending`: there is something to carry.
void Resumption::judge_last(Link& link, std::uint64_t carried, bool pending,
                            const ResumableChannel::Break& what) const {
  const bool useless = carried == std::exchange(link.carried, carried) && pending && what.at - link.since < soon;
  link.useless = useless ? link.useless + 1 : 0;
  if (!useless || link.useless == 1) link.broken_at = what.at;
  if (what.at - link.broken_at > terms_.time)
    throw Useless(fmt::format("{}; {} connections have broken so and carried nothing, for {}", what.why, link.useless,
                              seconds_since(link.broken_at)));
}

// One attempt. Throws Refused or Useless if there is no use in another one.
void Resumption::connect_again(ResumableChannel& channel, std::uint32_t number, const ResumableChannel::Break& what) {
  const std::uint64_t received = channel.fence();
  const Link known = link(number);
  std::unique_ptr<Channel> connection;
  GoOn go_on;
  try {
    connection = connect_({.session = terms_.session, .key = terms_.lane_key, .channel = number, .resumes = true});
  } catch (const TlsError& error) {
    // A broker that knows no such session says so in the clear.
    if (error.cause == TlsError::Cause::not_tls) throw Refused("there is no such session there");
    throw;
  }
  watch_connection(*connection);
  const auto hear = [&](auto&& use) {
    const auto message = receive_control(*connection, limits::connect_timeout);
    MessageReader reader(message);
    const auto control = reader.root<wire::Control>();
    if (control.isLaneAnswer()) {
      check(control.getLaneAnswer());
      throw Refused("it does not resume sessions");
    }
    use(control);
  };
  if (terms_.meet) {
    hear([&](wire::Control::Reader control) {
      if (!control.isRdma()) throw ProtocolError("the worker does not go on by RDMA, as the session did");
      go_on = terms_.meet(*connection, control.getRdma(), known.useless > 0);
    });
  }
  send_control(*connection, 2, [&](wire::Control::Builder control) {
    auto resume = control.initResume();
    resume.setChannel(number);
    resume.setEpoch(channel.epoch());
    resume.setSecret(data_of(known.secret));
    resume.setReceived(received);
  });
  std::uint32_t epoch = 0;
  std::uint64_t peer_received = 0;
  hear([&](wire::Control::Reader control) {
    if (!control.isResumeAnswer()) throw ProtocolError("no answer to what was asked");
    const auto answer = control.getResumeAnswer();
    check(answer.getFailure());
    const auto secret = answer.getSecret();
    if (secret.size() != limits::resume_secret_bytes) throw Refused("it gave no secret for the next time");
    epoch = answer.getEpoch();
    peer_received = answer.getReceived();
    const std::lock_guard lock(mutex_);
    Link& link = links_[number];
    judge_last(link, received + peer_received, answer.getPending() || channel.has_more_than(peer_received), what);
    link.secret = copy_of(secret);
    link.since = Clock::now();
  });
  const std::shared_ptr<Channel> met = go_on ? go_on(std::move(connection)) : std::move(connection);
  channel.resume(met, epoch, peer_received);
  channel.catch_up(met);
}

// What broke the session's connection has broken the others that were there, which may not show for long.
void Resumption::suspect_lanes(Clock::time_point before) {
  std::vector<std::shared_ptr<ResumableChannel>> lanes;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, link] : links_)
      if (number != 0 && link.since < before) lanes.push_back(link.channel.lock());
  }
  for (const auto& lane : lanes)
    if (lane && !lane->resuming()) lane->suspect("the session's connection broke");
}

}  // namespace fargpu::client
