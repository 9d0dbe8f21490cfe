#include "broker_host.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "fuzz.h"
#include "protocol/frame.h"
#include "protocol/message.h"
#include "protocol/version.h"
#include "server/broker/event_log.h"
#include "protocol/site/tokens.h"
#include "server/worker_link.h"

namespace fargpu::fuzz {
namespace {

BrokerHost* host;
constexpr pid_t first_process = 10'000'000;  // more than any has
pid_t last_process = first_process - 1;
int link_of_next = -1;

struct Ended {
  pid_t process;
  int status;
};
std::deque<Ended> ended;  // and not reaped yet

}  // namespace
}  // namespace fargpu::fuzz

// What starts, ends and reaps workers, called in place of the C library's: see --wrap in CMakeLists.txt.
extern "C" {

int __wrap_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t*, int descriptor, int) {
  fargpu::fuzz::link_of_next = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return 0;
}

int __wrap_posix_spawn(pid_t* process, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                       char* const*, char* const*) {
  using namespace fargpu::fuzz;
  const int link = std::exchange(link_of_next, -1);
  ::fcntl(link, F_SETFL, ::fcntl(link, F_GETFL) | O_NONBLOCK);
  *process = ++last_process;
  host->on_start(host->processes().emplace_back(PretendedWorker{*process, link}));
  return 0;
}

int __wrap_kill(pid_t process, int signal) {
  fargpu::fuzz::host->end(process, signal);
  return 0;
}

pid_t __wrap_waitpid(pid_t, int* status, int) {
  using namespace fargpu::fuzz;
  if (ended.empty()) return 0;
  const Ended one = ended.front();
  ended.pop_front();
  std::erase_if(host->processes(), [&](const PretendedWorker& worker) {
    if (worker.process != one.process) return false;
    ::close(worker.link);
    return true;
  });
  *status = one.status;
  return one.process;
}
}

namespace fargpu::fuzz {

void say_ready(wire::WorkerMessage::Builder message) {
  auto ready = message.initReady();
  ready.setRelease(our_release);
  auto facts = ready.initFacts();
  facts.setDriverVersion(13000);
  unsigned char number = 0;
  for (auto device : facts.initDevices(2)) {
    device.setName("a device");
    device.setMemoryBytes(std::uint64_t{16} << 30);
    device.initUuid(16)[0] = number++;
  }
}

BrokerHost::BrokerHost(const std::string& settings) {
  host = this;
  on_start = [](PretendedWorker& worker) {
    expect(server::send_link(worker.link, say_ready), "no room for a worker's first word");
  };
  std::string name = std::filesystem::temp_directory_path() / "fargpu-fuzz-XXXXXX";
  expect(::mkdtemp(name.data()) != nullptr, "no folder for the broker");
  folder_ = name;
  const auto hash = site::hash_token("fargpu_known");
  std::string tokens = "known lab never ";
  for (const std::byte byte : hash) tokens += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  std::ofstream(folder_ / "tokens") << tokens << "\n";
  std::ofstream(folder_ / "settings.toml")
      << "token_file = \"" << (folder_ / "tokens").string() << "\"\n"
      << settings << "[tenant.default]\nmemory = \"8GiB\"\nsessions = 3\npriority = \"normal\"\n"
      << "[tenant.lab]\ncompute = \"100%\"\nadministrator = true\n";
  const std::string config = folder_ / "settings.toml", listen = "unix:" + (folder_ / "socket").string();
  const char* const arguments[] = {
      "fargpud", "--config", config.c_str(),   "--listen", listen.c_str(),   "--worker", "/proc/self/exe",
      "--nvml",  "",         "--image-folder", "",         "--sessions-max", "8",        "--refusals-per-address-max",
      "1000000"};
  int exit_code = 0;
  expect(server::read_settings(std::size(arguments), const_cast<char**>(arguments), settings_, exit_code) ==
             server::Command::serve,
         "no settings");
  settings_.refusals_per_address_max = ~std::uint64_t{0};  // more than read_settings() would let anybody say
  // It has much to say: told only when asked.
  const char* const level = std::getenv("FARGPU_LOG_LEVEL");
  server::EventLog::start(level ? level : "error", "text");
  if (!level) spdlog::set_level(spdlog::level::off);
  ::signal(SIGPIPE, SIG_IGN);
  broker_ = std::make_unique<server::Broker>(io_, settings_);
  bool ready = false;
  workers().reserve({}, [&](server::Worker* worker, const std::string& why) {
    expect(worker != nullptr, why.c_str());
    workers().release(*worker);
    ready = true;
  });
  while (!ready) io_.run_one();
  broker_->listen();
  address_.sun_family = AF_UNIX;
  std::snprintf(address_.sun_path, sizeof(address_.sun_path), "%s/socket", folder_.c_str());
  at_end = [] { std::filesystem::remove_all(host->folder_); };
}

BrokerHost& BrokerHost::instance(const std::string& settings) {
  if (!host) new BrokerHost(settings);
  return *host;
}

int BrokerHost::connect() {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  expect(socket >= 0, "no socket");
  while (::connect(socket, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) != 0) {
    expect(errno == EAGAIN || errno == EINTR, "the broker does not listen any more");
    go_on();  // its queue is full
  }
  go_on();
  return socket;
}

void BrokerHost::go_on() {
  if (io_.stopped()) io_.restart();
  do {
    while (io_.poll() > 0) {}
  } while (end_the_unlinked());
}

// As fargpu-worker does.
bool BrokerHost::end_the_unlinked() {
  bool any = false;
  for (const PretendedWorker& worker : processes_) {
    pollfd link{worker.link, 0, 0};
    if (worker.ended || ::poll(&link, 1, 0) != 1) continue;
    end(worker.process, 0);
    any = true;
  }
  return any;
}

void BrokerHost::end(pid_t process, int signal) {
  const auto found = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const PretendedWorker& worker) { return worker.process == process; });
  expect(found != processes_.end(), "a signal to a process that is no worker's");
  if (std::exchange(found->ended, true)) return;
  ended.push_back({process, signal});
  ::raise(SIGCHLD);
}

void Caller::send(std::span<const std::uint8_t> bytes, bool with_head) {
  if (socket_ < 0) {
    socket_ = BrokerHost::instance().connect();
    sent_ = heard_ = 0;
    answers_.clear();
  }
  FrameHeader header;
  const auto message = with_head ? bytes.first(bytes.size() / 8 * 8) : bytes;
  header.kind = FrameKind::control;
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.sequence = ++sent_;
  Input frame;
  if (with_head) append_value(frame, header);
  frame.insert(frame.end(), message.begin(), message.end());
  // Or refused before.
  [[maybe_unused]] const ssize_t gone = ::send(socket_, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  BrokerHost::instance().go_on();
  hear();
}

void Caller::send(const std::function<void(wire::Control::Builder)>& fill) {
  MessageWriter writer;
  fill(writer.root<wire::Control>());
  const auto message = writer.finish();
  send({reinterpret_cast<const std::uint8_t*>(message.data()), message.size()}, true);
}

void Caller::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void Caller::hear() {
  std::array<std::byte, 65536> buffer;
  for (ssize_t got; (got = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;) {
    answers_.insert(answers_.end(), buffer.begin(), buffer.begin() + got);
    BrokerHost::instance().go_on();  // there is room for the rest
  }
  while (answers_.size() >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, answers_.data(), sizeof(header));
    check_frame_header(header);
    expect(header.kind == FrameKind::control && header.bulk_bytes == 0 && header.sequence == ++heard_,
           "no frame of a broker, or out of its order");
    const std::size_t whole = sizeof(header) + header.message_bytes;
    if (answers_.size() < whole) broken("a part of a frame");
    const std::vector<std::byte> message(answers_.begin() + sizeof(header),
                                         answers_.begin() + static_cast<std::ptrdiff_t>(whole));
    MessageReader reader(message);
    const auto answer = reader.root<wire::Control>();
    capnp::MallocMessageBuilder copy;
    copy.setRoot(answer);
    answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(whole));
    if (on_answer) on_answer(MessageReader(message).root<wire::Control>());
  }
}

}  // namespace fargpu::fuzz
