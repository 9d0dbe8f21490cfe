#include "trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "cuda_facts.h"
#include "trace_details.h"
#include "client/base/environment.h"
#include "client/base/log.h"
#include "client/base/uncancelled.h"
#include "client/objects/stream.h"
#include "client/objects/thread.h"
#include "client/base/threads.h"

namespace fargpu::client::trace {
namespace {

constexpr std::size_t buffer_bytes_max = 64u << 10;
constexpr std::uint64_t file_bytes_max = 2ull << 30;  // more than viewers open
constexpr auto written_every = std::chrono::milliseconds(100);

std::string wanted_path() {
  const char* const path = environment_variable("FARGPU_TRACE");
  std::string name = path ? path : "";
  for (std::size_t at; (at = name.find("%p")) != std::string::npos;) name.replace(at, 2, std::to_string(::getpid()));
  return name;
}

/// The file, one event a line. Opened by the first event, so that a process without a session has none.
class File {
 public:
  void add(const std::string& event) {
    const std::lock_guard lock(mutex_);
    if (!open()) return;
    buffer_ += (bytes_ + buffer_.size() == 0 ? "[\n" : ",\n") + event;
    if (bytes_ + buffer_.size() >= file_bytes_max) {
      buffer_ +=
          fmt::format(",\n{{\"name\":\"the trace is full\",\"ph\":\"i\",\"s\":\"p\",\"ts\":0,\"pid\":{}}}\n]\n", pid_);
      close();
      return;
    }
    if (buffer_.size() >= buffer_bytes_max) write();
  }

  void write_what_there_is() {
    const std::lock_guard lock(mutex_);
    if (descriptor_ >= 0 && pid_ == ::getpid()) write();
  }

  void finish() {
    const std::lock_guard lock(mutex_);
    if (descriptor_ < 0 || pid_ != ::getpid()) return;  // a forked child's copy is its parent's to write
    buffer_ += "\n]\n";
    close();
  }

 private:
  bool open() {
    if (opened_) return descriptor_ >= 0 && pid_ == ::getpid();
    opened_ = true;
    pid_ = ::getpid();
    std::string path = wanted_path();
    const auto take = [&] {
      // Without waiting for a reader, should it be a pipe.
      descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
      return descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    };
    if (!take() && descriptor_ >= 0) {  // another process of this job is at it
      ::close(descriptor_);
      path += "." + std::to_string(pid_);
      take();
    }
    struct stat status {};
    if (descriptor_ >= 0 && ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode) &&
        ::ftruncate(descriptor_, 0) == 0)
      return true;
    log::write(log::Level::warn,
               "FARGPU_TRACE '" + path + "' " +
                   (descriptor_ >= 0 && !S_ISREG(status.st_mode) ? "is no file" : "cannot be written") +
                   "; there will be no trace");
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    return false;
  }

  void write() {
    std::size_t written = 0;
    while (written < buffer_.size()) {
      const ssize_t now = ::write(descriptor_, buffer_.data() + written, buffer_.size() - written);
      if (now <= 0) {
        log::write(log::Level::warn, "the trace could not be written to its end");
        ::close(std::exchange(descriptor_, -1));
        return;
      }
      written += static_cast<std::size_t>(now);
    }
    bytes_ += written;
    buffer_.clear();
  }

  void close() {
    write();
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }

  std::mutex mutex_;
  bool opened_ = false;
  pid_t pid_ = 0;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::string buffer_;
};

File& file() {
  static File* const instance = new File;  // never destroyed: late calls may still be traced
  return *instance;
}

double us(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }
double us(Clock::time_point time) { return us(time.time_since_epoch()); }

// The thread of an event, named in the file before its first one.
long thread_id(Thread& thread) {
  long& known = thread.traced.thread_id;
  if (known != 0) return known;
  known = ::syscall(SYS_gettid);
  char name[32] = "";
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  file().add(fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", ::getpid(),
                         known, escaped(name)));
  return known;
}

/// What streams are called: numbers in the order in which they are first met, as a program makes them.
class StreamNames {
 public:
  std::string name(const Stream& stream) {
    if (stream.legacy()) return "default";
    const std::lock_guard lock(mutex_);
    return std::to_string(numbers_.try_emplace(stream.id, numbers_.size() + 1).first->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::size_t> numbers_;
};

StreamNames& stream_names() {
  static StreamNames* const instance = new StreamNames;  // never destroyed, as the file
  return *instance;
}

template <class Write>
void guarded(Write&& write) noexcept {
  const Uncancelled uncancelled;
  try {
    write();
  } catch (...) {  // a trace is not worth a program
  }
}

}  // namespace

const bool enabled = !wanted_path().empty();
const bool detailed = enabled || log::trace_wanted();

std::function<std::string(Handle)>& name_of_function() {
  static auto* const instance = new std::function<std::string(Handle)>([](Handle) { return std::string(); });
  return *instance;
}

void write_call(Thread& thread, Symbol symbol, CUresult result, Clock::time_point begin) noexcept {
  guarded([&] {
    const auto end = Clock::now();
    TraceCosts& costs = thread.traced;
    const long tid = thread_id(thread);
    file().add(fmt::format(
        R"({{"name":"{}","cat":"call","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{"result":"{}",{})"
        R"("bytes_out":{},"bytes_in":{},"round_trips":{},"waited_us":{:.3f}}}}})",
        facts_of(symbol).name, us(begin), us(end - begin), ::getpid(), tid, result_name(result),
        costs.details ? costs.details->json() : "", costs.bytes_out, costs.bytes_in, costs.round_trips,
        us(costs.waited)));
    costs = TraceCosts{.thread_id = tid, .details = log::trace_wanted() ? costs.details : nullptr};
  });
}

void write_frame(Thread& thread, const Stream* stream, Opcode opcode, std::span<const std::byte> message,
                 std::uint64_t bytes) noexcept {
  guarded([&] {
    thread.traced.bytes_out += bytes;
    if (!stream) return;
    auto& details = thread.traced.details;
    if (!details) details = std::make_shared<Details>();
    details->add(opcode, message, name_of_function());
    if (!enabled) return;
    details->stream = stream_names().name(*stream);
    const std::uint64_t items = stream->items, retired = stream->retired;
    file().add(
        fmt::format(R"({{"name":"stream {}: work in flight","ph":"C","ts":{:.3f},"pid":{},"args":{{"pieces":{}}}}})",
                    details->stream, us(Clock::now()), ::getpid(), items > retired ? items - retired : 0));
  });
}

void write_round_trip(Thread& thread, Opcode opcode, CUresult result, std::uint64_t bytes_in,
                      Clock::time_point begin) noexcept {
  guarded([&] {
    const auto took = Clock::now() - begin;
    TraceCosts& costs = thread.traced;
    costs.bytes_in += bytes_in;
    ++costs.round_trips;
    costs.waited += took;
    file().add(
        fmt::format(R"({{"name":"round trip: {}","cat":"wire","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},)"
                    R"("args":{{"result":"{}","bytes_in":{}}}}})",
                    opcode_name(static_cast<std::uint16_t>(opcode)), us(begin), us(took), ::getpid(), thread_id(thread),
                    result_name(result), bytes_in));
  });
}

void write_transfer(Thread& thread, Direction direction, std::uint64_t bytes, Clock::time_point begin) noexcept {
  guarded([&] {
    const auto took = Clock::now() - begin;
    const bool out = direction == Direction::out;
    (out ? thread.traced.bytes_out : thread.traced.bytes_in) += bytes;
    thread.traced.waited += took;
    file().add(fmt::format(
        R"({{"name":"bulk lanes: {}","cat":"wire","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{"bytes":{}}}}})",
        out ? "out" : "in", us(begin), us(took), ::getpid(), thread_id(thread), bytes));
  });
}

void begin_session(const SessionFacts& session, Clock::time_point begin) noexcept {
  guarded([&] {
    if (session.name_of_function) name_of_function() = session.name_of_function;
    if (!enabled) return;
    start_thread("fargpu-trace", [] {
      for (;; std::this_thread::sleep_for(written_every)) guarded([] { file().write_what_there_is(); });
    });
    std::string devices;
    for (const std::string& device : session.devices)
      devices += (devices.empty() ? "\"" : ",\"") + escaped(device) + "\"";
    file().add(fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"{}"}}}})", ::getpid(),
                           escaped(::program_invocation_short_name)));
    file().add(fmt::format(
        R"({{"name":"cuInit: a session","cat":"session","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{}}})",
        us(begin), us(Clock::now() - begin), ::getpid(), thread_id(Thread::current())));
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    file().add(fmt::format(
        R"({{"name":"session","cat":"session","ph":"i","s":"p","ts":{:.3f},"pid":{},"args":{{"host":"{}","session":{},)"
        R"("devices":[{}],"shared_memory":{},"version":"{}","unix_us":{}}}}})",
        us(Clock::now()), ::getpid(), escaped(session.host), session.id, devices, session.shares_memory, FARGPU_VERSION,
        std::chrono::duration_cast<std::chrono::microseconds>(now).count()));
  });
}

void note(const std::string& text) noexcept {
  if (!enabled) return;
  guarded([&] {
    file().add(fmt::format(R"({{"name":"{}","cat":"session","ph":"i","s":"p","ts":{:.3f},"pid":{}}})", escaped(text),
                           us(Clock::now()), ::getpid()));
  });
}

void memory_returned(const std::string& host, std::uint64_t bytes, const std::array<MemoryState, 4>& states) noexcept {
  if (!enabled) return;
  guarded([&] {
    double at = us(Clock::now());
    for (const MemoryState& state : states) at -= static_cast<double>(state.us);
    for (const auto& [name, length] : states) {
      // On a track of their own: no thread of the program does this.
      const auto add = [&](char end) {
        file().add(fmt::format(
            R"({{"name":"{}","cat":"memory","ph":"{}","id":"{}","ts":{:.3f},"pid":{},"args":{{"bytes":{}}}}})", name,
            end, escaped(host), at, ::getpid(), bytes));
      };
      add('b');
      at += static_cast<double>(length);
      add('e');
    }
  });
}

void finish() noexcept {
  if (enabled) guarded([] { file().finish(); });
}

}  // namespace fargpu::client::trace
