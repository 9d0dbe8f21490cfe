#include "driver/print_buffer.h"

#include <cstdio>
#include <utility>

namespace fargpu::softgpu {

void PrintBuffer::set_limit(size_t bytes) {
  std::lock_guard lock(mutex_);
  limit_bytes_ = bytes;
}

size_t PrintBuffer::limit() const {
  std::lock_guard lock(mutex_);
  return limit_bytes_;
}

void PrintBuffer::append(std::string_view text) {
  std::lock_guard lock(mutex_);
  texts_.emplace_back(text);
  bytes_ += text.size();
  while (bytes_ > limit_bytes_ && texts_.size() > 1) {
    bytes_ -= texts_.front().size();
    texts_.pop_front();
  }
}

void PrintBuffer::flush() {
  std::lock_guard output_lock(output_mutex_);
  std::deque<std::string> texts;
  {
    std::lock_guard lock(mutex_);
    texts.swap(texts_);
    bytes_ = 0;
  }
  if (texts.empty()) return;
  for (const std::string& text : texts) std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace fargpu::softgpu
