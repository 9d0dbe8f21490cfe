#define CATCH_CONFIG_RUNNER
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <vector>

#include "protocol/frame.h"
#include "wrap.h"

namespace fargpu::test {
namespace {

/// Writes what the client sends, but for the first frame (attach), to a file of its own: inputs for tests/fuzz.
class Recording final : public WrappedChannel {
 public:
  Recording(std::unique_ptr<Channel> channel, std::string folder)
      : WrappedChannel(std::move(channel)), folder_(std::move(folder)) {}
  // The client keeps its channel for good.
  void close() noexcept override {
    std::call_once(written_, [&] { write(); });
    WrappedChannel::close();
  }
  std::size_t send_some(std::span<const Bytes> pieces) override {
    const std::size_t taken = WrappedChannel::send_some(pieces);
    const std::lock_guard lock(mutex_);  // another thread may close meanwhile
    std::size_t rest = std::min(taken, bytes_max - std::min(bytes_max, sent_.size()));
    for (const Bytes& piece : pieces) {
      const std::size_t part = std::min(rest, piece.size());
      sent_.insert(sent_.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(part));
      rest -= part;
    }
    return taken;
  }

 private:
  static constexpr std::size_t bytes_max = 64u << 10;  // the beginning will do
  void write() {
    const std::lock_guard lock(mutex_);
    FrameHeader attach;
    if (sent_.size() < sizeof(attach)) return;
    std::memcpy(&attach, sent_.data(), sizeof(attach));
    const std::size_t first = sizeof(attach) + attach.message_bytes;
    if (sent_.size() <= first) return;
    static unsigned number = 0;
    std::ofstream file(folder_ + "/session-" + std::to_string(++number), std::ios::binary);
    file.write(reinterpret_cast<const char*>(sent_.data() + first), static_cast<std::streamsize>(sent_.size() - first));
  }

  const std::string folder_;
  std::mutex mutex_;
  std::vector<std::byte> sent_;
  std::once_flag written_;
};

}  // namespace
}  // namespace fargpu::test

/// With FARGPU_RECORD_SESSIONS=FOLDER, what the clients of the fixture send is kept there.
int main(int count, char** arguments) {
  using namespace fargpu::test;
  if (const char* const folder = std::getenv("FARGPU_RECORD_SESSIONS")) {
#if !defined(__SANITIZE_THREAD__)  // which leaves one place only
    // Their windows are those of a build with AddressSanitizer (client/connect/windows.cpp) in any build, so that one
    // can begin with another's.
    ::mmap(reinterpret_cast<void*>(0x1000'0000'0000), 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
           -1, 0);
#endif
    wrap_channel = [folder](auto channel) -> std::unique_ptr<fargpu::Channel> {
      if (channel->shares_memory()) return channel;  // attach went another way
      return std::make_unique<Recording>(std::move(channel), folder);
    };
  }
  return Catch::Session().run(count, arguments);
}
