#include "running_session.h"

#include <utility>

#include "server/worker/session/lane_requests.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

void RunningSession::set(Session* session) {
  const std::lock_guard lock(mutex_);
  session_ = session;
  if (session_ && turn_) session_->hear_turn(*turn_);
  if (session_ && !notice_.empty()) session_->notify(notice_);
  if (session_ && !stop_why_.empty()) session_->stop(stop_why_);
}

void RunningSession::hear_turn(const scheduler::Turn& turn) {
  const std::lock_guard lock(mutex_);
  turn_ = turn;
  if (session_) session_->hear_turn(turn);
}

// Before the session runs it has no memory that could leave, and wants none.
void RunningSession::hear_evict(EvictOrder order) {
  const std::lock_guard lock(mutex_);
  if (session_) session_->residency().hear(std::move(order));
}

void RunningSession::hear_room(std::uint64_t request, bool made) {
  const std::lock_guard lock(mutex_);
  if (session_) session_->residency().hear_room(request, made);
}

void RunningSession::hear_of_new_broker() {
  const std::lock_guard lock(mutex_);
  if (session_) session_->residency().hear_of_new_broker();
}

void RunningSession::stop(const std::string& why) {
  const std::lock_guard lock(mutex_);
  stop_why_ = why;
  if (session_) session_->stop(why);
}

void RunningSession::notify(const std::string& line) {
  const std::lock_guard lock(mutex_);
  notice_ = line;
  if (session_) session_->notify(line);
}

void RunningSession::take_lane(std::unique_ptr<Channel> lane, const LaneWish& wish) {
  const std::lock_guard lock(mutex_);
  server::take_lane(session_, std::move(lane), wish);
}

std::optional<PeerWish> RunningSession::read_peer(std::span<const std::byte> lane_message) const {
  const std::lock_guard lock(mutex_);
  return session_ ? session_->peers().read(lane_message) : std::nullopt;
}

void RunningSession::take_peer(std::unique_ptr<Channel> channel, const PeerWish& wish) {
  const std::lock_guard lock(mutex_);
  if (session_) session_->peers().take(std::move(channel), wish);
}

std::optional<std::uint64_t> RunningSession::rounds() const {
  const std::lock_guard lock(mutex_);
  if (!session_) return std::nullopt;
  return session_->rounds();
}

}  // namespace fargpu::server
