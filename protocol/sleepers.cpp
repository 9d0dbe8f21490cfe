#include "sleepers.h"

#include <algorithm>
#include <utility>

namespace fargpu {

Sleepers::Sleeper::Sleeper(Sleepers& sleepers, Waker* waker) : sleepers_(sleepers), waker_(waker) {
  const std::lock_guard lock(sleepers.mutex_);
  sleepers.spare_.reserve(sleepers.spare_.size() + sleepers.sleeping_.size() + 1);  // the end must not need memory
  if (!waker_) {
    if (sleepers.spare_.empty()) {
      own_ = std::make_unique<Waker>();
    } else {
      own_ = std::move(sleepers.spare_.back());
      sleepers.spare_.pop_back();
    }
    waker_ = own_.get();
  }
  sleepers.sleeping_.push_back(waker_);
}

Sleepers::Sleeper::~Sleeper() {
  const std::lock_guard lock(sleepers_.mutex_);
  auto& sleeping = sleepers_.sleeping_;
  sleeping.erase(std::find(sleeping.begin(), sleeping.end(), waker_));
  if (own_) sleepers_.spare_.push_back(std::move(own_));
  if (sleeping.empty() && sleepers_.none_left_) sleepers_.none_left_();
}

void Sleepers::wake(const Waker* except) {
  const std::lock_guard lock(mutex_);
  for (Waker* const sleeper : sleeping_)
    if (sleeper != except) sleeper->signal();
}

bool Sleepers::any() const {
  const std::lock_guard lock(mutex_);
  return !sleeping_.empty();
}

}  // namespace fargpu
