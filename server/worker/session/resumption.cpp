#include "resumption.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/same_secret.h"

namespace fargpu::server {
namespace {

using Clock = ResumableChannel::Clock;

/// In which what belongs together is heard, though it comes by several connections.
constexpr auto together = std::chrono::seconds(1);

std::vector<std::byte> random_secret() {
  std::vector<std::byte> secret(limits::resume_secret_bytes);
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    throw SystemError("no random numbers");
  return secret;
}

void answer(Channel& connection, const std::function<void(wire::ResumeAnswer::Builder)>& fill) {
  send_control(connection, 1, [&](wire::Control::Builder control) { fill(control.initResumeAnswer()); });
}

}  // namespace

Resumption::Resumption(Options options) : options_(std::move(options)), first_secret_(random_secret()) {}

std::shared_ptr<ResumableChannel> Resumption::wrap(std::shared_ptr<Channel> connection, std::uint32_t number) {
  const bool own = number == 0;
  const std::lock_guard lock(mutex_);
  if (number > limits::lanes_max || links_.contains(number))
    throw ProtocolError("a connection of the session has a number that it cannot have");
  ResumableChannel::Hooks hooks;
  watch_connection(*connection);
  if (own) {
    hooks.broke = [this](const Break& what) {
      const std::lock_guard noting(mutex_);
      if (what.at >= returned_at_) options_.tell(&what, "");  // else the client is back already
    };
    hooks.impatience = [this](const Break& what) { return impatience(what); };
  } else {
    hooks.broke = [this](const Break& what) {
      const std::lock_guard noting(mutex_);
      // A client that has come back closes the lanes that it had before.
      if (what.ended && what.at > returned_at_ + together) lane_ended_at_ = what.at;
    };
  }
  auto channel = std::make_shared<ResumableChannel>(
      std::move(connection), own ? limits::resume_log_bytes : limits::resume_lane_log_bytes, std::move(hooks));
  links_[number] = {.channel = channel, .epoch = 0, .secret = first_secret_, .former = {}};
  return channel;
}

// Asked often while it lasts; time in which the client cannot come does not count.
std::string Resumption::impatience(const Break& what) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (std::exchange(broken_at_, what.at) != what.at) {
    looked_at_ = what.at;
    waited_ = {};
  }
  const auto passed = now - std::exchange(looked_at_, now);
  if (!options_.clock_stands()) waited_ += passed;
  // A process that ends closes all its connections, in order but for those with bytes that it has not read.
  const bool ended = what.ended || (lane_ended_at_ < what.at + together && what.at < lane_ended_at_ + together);
  // A client that has said nothing yet may not even know the secret.
  const Link& own = links_.at(0);
  const bool met = own.epoch > 0 || own.channel->heard();
  const auto most = ended || !met ? std::min(options_.time, limits::resume_ended_max) : options_.time;
  if (waited_ < most) return "";
  return what.why + ", and the client has not come back for " + std::to_string(most.count() / 1000) + " s";
}

// Why this is not the session's client, or no longer; empty if it is.
std::string Resumption::refusal(const Link& link, wire::Resume::Reader resume) const {
  if (link.channel->over()) return "the session is over";
  const std::span<const std::byte> secret = bytes_of(resume.getSecret());
  const std::uint32_t epoch = resume.getEpoch();
  if (epoch == link.epoch && same_secret(link.secret, secret)) return "";
  // What it was told by that connection may not have come.
  const bool told = link.channel->epoch() == link.epoch && link.channel->heard();
  if (epoch + 1 == link.epoch && !told && same_secret(link.former, secret)) return "";
  return "the session was resumed by another connection since, or this is not its client";
}

void Resumption::claim(std::unique_ptr<Channel> connection, const Meet& meet) noexcept {
  std::shared_ptr<ResumableChannel> channel;
  std::shared_ptr<Channel> met;
  try {
    const GoOn go_on = meet ? meet(*connection) : GoOn();
    const auto message = receive_control(*connection, limits::connect_timeout);
    MessageReader reader(message);
    const auto control = reader.root<wire::Control>();
    if (!control.isResume()) return;
    const auto resume = control.getResume();
    const std::lock_guard lock(mutex_);
    const auto found = links_.find(resume.getChannel());
    const std::string refused =
        found == links_.end() ? "the session has no such connection" : refusal(found->second, resume);
    if (!refused.empty()) {
      answer(*connection, [&](wire::ResumeAnswer::Builder to) {
        auto failure = to.initFailure();
        failure.setReason(wire::Failure::Reason::DENIED);
        failure.setText(refused);
      });
      return;
    }
    Link& link = found->second;
    const std::uint32_t epoch = resume.getEpoch() + 1;
    // The client may have the answer to a claim that came before this one: an older claim, of a connection that it has
    // given up, may have been under way for longer.
    Secret next = epoch == link.epoch ? link.secret : random_secret();
    const std::uint64_t received = link.channel->fence();
    channel = link.channel;
    if (epoch != link.epoch) link.former = std::move(link.secret);
    link.secret = std::move(next);
    link.epoch = epoch;
    answer(*connection, [&](wire::ResumeAnswer::Builder to) {
      to.setEpoch(epoch);
      to.setSecret(data_of(link.secret));
      to.setReceived(received);
      to.setPending(link.channel->has_more_than(resume.getReceived()));
    });
    watch_connection(*connection);
    met = go_on ? go_on(std::move(connection)) : std::move(connection);
    if (found->first == 0) returned_at_ = Clock::now();
    channel->resume(met, epoch, resume.getReceived());
    if (found->first == 0) options_.tell(nullptr, met->peer());
  } catch (const ProtocolError& error) {
    if (channel) channel->give_up(std::string("protocol error: ") + error.what());
    return;
  } catch (...) {  // it is gone: the client comes again
    return;
  }
  channel->catch_up(met);
}

}  // namespace fargpu::server
