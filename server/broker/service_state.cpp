#include "service_state.h"

#include "protocol/site/tokens.h"

namespace fargpu::server {

ServiceState::State ServiceState::at(Time now) const {
  return state_ == State::draining && until_ && now >= *until_ ? State::serving : state_;
}

std::optional<ServiceState::Time> ServiceState::until(Time now) const { return serves(now) ? std::nullopt : until_; }

std::string ServiceState::drain(Time now, std::optional<std::chrono::seconds> time) {
  if (at(now) == State::stopping) return "this host is shutting down already";
  if (time && (*time <= std::chrono::seconds(0) || *time > drain_max))
    return "a drain lasts from one second to a year; leave the time out for no end";
  state_ = State::draining;
  until_ = time ? std::optional(now + *time) : std::nullopt;
  return "";
}

std::string ServiceState::resume(Time now) {
  switch (at(now)) {
    case State::stopping: return "this host is shutting down; start its fargpud again";
    case State::serving: return "this host serves new sessions already";
    default: break;
  }
  state_ = State::serving;
  until_.reset();
  return "";
}

void ServiceState::stop(Time end) {
  state_ = State::stopping;
  until_ = end;
}

std::string ServiceState::refusal(Time now) const {
  switch (at(now)) {
    case State::serving: return "";
    case State::stopping: return "this host is shutting down";
    default: break;
  }
  const std::string end =
      until_ ? " until " + site::time_text(std::chrono::time_point_cast<std::chrono::seconds>(*until_)) : "";
  return "this host is drained by its administrator" + end +
         " and takes no new sessions; use another host, or try later";
}

}  // namespace fargpu::server
