#include "error_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <vector>

#include "client/base/environment.h"
#include "client/base/uncancelled.h"
#include "cuda_facts.h"

namespace fargpu::client {
namespace {

constexpr std::string_view cut = "[CUDA] older messages are left out\n";

std::string line(CUlogLevel level, std::string_view message) {
  timeval now{};
  ::gettimeofday(&now, nullptr);
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  return fmt::format("[{:02}:{:02}:{:02}.{:03}][{}][CUDA][{}]{}\n", local.tm_hour, local.tm_min, local.tm_sec,
                     now.tv_usec / 1000, ::syscall(SYS_gettid), level == CU_LOG_LEVEL_ERROR ? 'E' : 'W', message);
}

}  // namespace

ErrorLog::ErrorLog() {
  const char* const wanted = environment_variable("CUDA_LOG_FILE");
  if (!wanted || !*wanted) return;
  const std::string_view name = wanted;
  if (name == "stdout") file_ = STDOUT_FILENO;
  else if (name == "stderr") file_ = STDERR_FILENO;
  else file_ = ::open(wanted, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

void ErrorLog::note(Symbol symbol, CUresult result) noexcept {
  try {
    add(CU_LOG_LEVEL_ERROR, fmt::format("[{0}] Returning {1} ({2}) from {0}", facts_of(symbol).name,
                                        static_cast<int>(result), result_name(result)));
  } catch (...) {}
}

void ErrorLog::add(CUlogLevel level, std::string message) {
  std::string text = line(level, message);
  std::vector<Callback> callbacks;
  {
    const Uncancelled uncancelled;
    const std::lock_guard lock(mutex_);
    for (const auto& [number, callback] : callbacks_) callbacks.push_back(callback);
    if (file_ >= 0 && ::write(file_, text.data(), text.size()) < 0) file_ = -1;
    bytes_ += text.size();
    messages_.push_back(std::move(text));
    ++end_;
    while (bytes_ > bytes_max) {
      bytes_ -= messages_.front().size();
      messages_.pop_front();
    }
  }
  // Outside of the lock: they may ask for the log.
  for (const Callback& callback : callbacks) callback.function(callback.data, level, message.data(), message.size());
}

std::uint32_t ErrorLog::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

std::uint32_t ErrorLog::first() const {
  const std::lock_guard lock(mutex_);
  return first_locked();
}

bool ErrorLog::read(std::uint32_t& iterator, std::size_t room, std::string& text) const {
  const std::lock_guard lock(mutex_);
  const auto wanted = static_cast<std::size_t>(end_ - iterator);
  if (wanted > end_) return false;  // ahead of everything
  const std::size_t kept = std::min(wanted, messages_.size());
  std::size_t bytes = 0;
  for (std::size_t i = messages_.size() - kept; i < messages_.size(); ++i) bytes += messages_[i].size();
  std::size_t from = messages_.size() - kept;
  const bool all = kept == wanted && bytes <= room;
  if (!all) {
    for (; from < messages_.size() && bytes + cut.size() > room; ++from) bytes -= messages_[from].size();
    if (from == messages_.size()) return false;
  }
  text = all ? "" : cut;
  for (; from < messages_.size(); ++from) text += messages_[from];
  iterator = end_;
  return true;
}

CUlogsCallbackHandle ErrorLog::add_callback(CUlogsCallback callback, void* data) {
  const std::lock_guard lock(mutex_);
  callbacks_[next_callback_] = {callback, data};
  return reinterpret_cast<CUlogsCallbackHandle>(next_callback_++);
}

bool ErrorLog::remove_callback(CUlogsCallbackHandle handle) {
  const std::lock_guard lock(mutex_);
  return callbacks_.erase(reinterpret_cast<std::uintptr_t>(handle)) == 1;
}

ErrorLog& error_log() {
  static ErrorLog* const log = new ErrorLog;
  return *log;
}

void note_error(Symbol symbol, CUresult result) noexcept {
  try {
    error_log().note(symbol, result);
  } catch (...) {}
}

}  // namespace fargpu::client
