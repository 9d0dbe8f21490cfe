#include "waiting_prints.h"

#include "client/base/log.h"
#include "client/base/uncancelled.h"

namespace fargpu::client {

WaitingPrints& waiting_prints = *new WaitingPrints;

void WaitingPrints::add(Stream stream, std::string_view text) {
  const std::lock_guard lock(mutex_);
  std::string& waiting = texts_[stream];
  waiting += text;
  if (waiting.size() > bytes_max) {
    waiting.erase(0, waiting.size() - bytes_max);
    log::write_once(log::Level::warn, "printed",
                    "kernels print more than there is room for while no CUDA call returns: the oldest is lost");
  }
  waiting_.store(true, std::memory_order_release);
}

void WaitingPrints::write_all() noexcept {
  const Uncancelled uncancelled;
  write_text(texts_[output], stdout);
  write_text(texts_[errors], stderr);
  const std::lock_guard lock(mutex_);
  if (texts_[output].empty() && texts_[errors].empty()) waiting_.store(false, std::memory_order_release);
}

// Taken under the stream's lock: a thread that finds nothing here and prints comes behind the one that took the text.
// Our own lock is not held meanwhile, because the thread that has the stream may be about to come here.
void WaitingPrints::write_text(std::string& waiting, std::FILE* stream) noexcept {
  ::flockfile(stream);
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text.swap(waiting);
  }
  if (!text.empty()) ::fwrite_unlocked(text.data(), 1, text.size(), stream);
  ::funlockfile(stream);
}

}  // namespace fargpu::client
