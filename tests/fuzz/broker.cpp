// The broker before strangers and clients: control messages on up to three connections at once, by its Unix socket. What it answers are
// frames in order that can be read, and once the connections are closed nothing of them is left. An input is pieces: of which connection,
// how, how many bytes, and those bytes, which get a frame's head with the right numbers unless the piece says that they are to go as they are.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "fuzz.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/message.h"
#include "server/broker/broker.h"
#include "server/broker/event_log.h"
#include "server/site/tokens.h"
#include "server/worker_link.h"

namespace fargpu {
namespace {

using server::Broker;

constexpr std::size_t connections = 3;
enum How : std::uint8_t { framed = 0, raw = 1, then_close = 2 };

// This program is its broker's worker as well: one that says it is ready and waits to be ended. There is no session here, because nobody
// can guess a ticket.
__attribute__((constructor)) void be_worker() {
  constexpr int link = 3;  // see Workers::start
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string arguments(std::istreambuf_iterator<char>(file), {});
  if (arguments.find(std::string("\0--link\0", 8)) == std::string::npos) return;
  const bool sent = server::send_link(link, [](wire::WorkerMessage::Builder message) {
    auto facts = message.initReady().initFacts();
    facts.setDriverVersion(13000);
    for (auto device : facts.initDevices(2)) {
      device.setName("a device");
      device.setMemoryBytes(std::uint64_t{16} << 30);
      device.initUuid(16);
    }
  });
  if (sent) (void)server::receive_link(link);
  ::_exit(0);
}

class Host {
 public:
  Host() {
    std::string name = std::filesystem::temp_directory_path() / "fargpu-fuzz-XXXXXX";
    expect(::mkdtemp(name.data()) != nullptr, "no folder for the broker");
    folder_ = name;
    const auto hash = site::hash_token("fargpu_known");
    std::string tokens = "known lab never ";
    for (const std::byte byte : hash) tokens += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    std::ofstream(folder_ / "tokens") << tokens << "\n";
    std::ofstream(folder_ / "settings.toml") << "token_file = \"" << (folder_ / "tokens").string() << "\"\n"
                                             << "[tenant.default]\nmemory = \"8GiB\"\nsessions = 3\npriority = \"normal\"\n"
                                             << "[tenant.lab]\ncompute = \"100%\"\nadministrator = true\n";
    const std::string config = folder_ / "settings.toml", listen = "unix:" + (folder_ / "socket").string();
    const char* const arguments[] = {"fargpud", "--config", config.c_str(), "--listen", listen.c_str(), "--worker", "/proc/self/exe", "--nvml", "",
                                     "--image-folder", "", "--sessions-max", "8", "--refusals-per-address-max", "1000000"};
    int exit_code = 0;
    expect(server::read_settings(std::size(arguments), const_cast<char**>(arguments), settings_, exit_code) == server::Wish::serve, "no settings");
    settings_.refusals_per_address_max = ~std::uint64_t{0};  // more than read_settings() would let anybody say
    server::EventLog::start("error", "text");
    ::signal(SIGPIPE, SIG_IGN);
    broker_ = std::make_unique<Broker>(io_, settings_);
    bool ready = false;
    broker_->workers().reserve({}, [&](server::Worker* worker, const std::string& why) {
      expect(worker != nullptr, why.c_str());
      broker_->workers().release(*worker);
      ready = true;
    });
    while (!ready) io_.run_one();
    broker_->listen();
    address_.sun_family = AF_UNIX;
    std::snprintf(address_.sun_path, sizeof(address_.sun_path), "%s/socket", folder_.c_str());
    fuzz::at_end = [] { std::filesystem::remove_all(instance().folder_); };
  }

  static Host& instance() {
    static Host* const host = new Host;  // never destroyed: it refers to itself in all that waits
    return *host;
  }

  int connect() {
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    expect(socket >= 0, "no socket");
    while (::connect(socket, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) != 0) {
      expect(errno == EAGAIN || errno == EINTR, "the broker does not listen any more");
      go_on();  // its queue is full
    }
    go_on();
    return socket;
  }
  void go_on() {
    if (io_.stopped()) io_.restart();
    while (io_.poll() > 0) {
    }
  }
  /// Workers that are promised to somebody. (One that is still starting is, until it is ready.)
  long promised() {
    const auto& workers = broker_->workers().all();
    return std::count_if(workers.begin(), workers.end(), [](const server::Worker& worker) { return worker.state == server::Worker::State::reserved; });
  }

 private:
  static void expect(bool holds, const char* what) { fuzz::expect(holds, what); }

  std::filesystem::path folder_;
  asio::io_context io_;
  server::Settings settings_;
  std::unique_ptr<Broker> broker_;
  sockaddr_un address_{};
};

/// One client's connection, whose answers must be frames.
class Caller {
 public:
  ~Caller() { close(); }
  void send(std::span<const std::uint8_t> bytes, bool with_head) {
    if (socket_ < 0) {
      socket_ = Host::instance().connect();
      sent_ = heard_ = 0;
      answers_.clear();
    }
    FrameHeader header;
    const auto message = with_head ? bytes.first(bytes.size() / 8 * 8) : bytes;
    header.kind = FrameKind::control;
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    header.sequence = ++sent_;
    fuzz::Input frame;
    if (with_head) fuzz::append_value(frame, header);
    frame.insert(frame.end(), message.begin(), message.end());
    [[maybe_unused]] const ssize_t gone = ::send(socket_, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);  // or refused before
    Host::instance().go_on();
    hear();
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  void hear() {
    std::array<std::byte, 65536> buffer;
    for (ssize_t got; (got = ::recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;)
      answers_.insert(answers_.end(), buffer.begin(), buffer.begin() + got);
    while (answers_.size() >= sizeof(FrameHeader)) {
      FrameHeader header;
      std::memcpy(&header, answers_.data(), sizeof(header));
      check_frame_header(header);
      fuzz::expect(header.kind == FrameKind::control && header.bulk_bytes == 0 && header.sequence == ++heard_, "no frame of a broker, or out of its order");
      const std::size_t whole = sizeof(header) + header.message_bytes;
      if (answers_.size() < whole) fuzz::broken("a part of a frame");
      const std::vector<std::byte> message(answers_.begin() + sizeof(header), answers_.begin() + static_cast<std::ptrdiff_t>(whole));
      MessageReader reader(message);
      capnp::MallocMessageBuilder copy;
      copy.setRoot(reader.root<wire::Control>());
      answers_.erase(answers_.begin(), answers_.begin() + static_cast<std::ptrdiff_t>(whole));
    }
  }

  int socket_ = -1;
  std::uint32_t sent_ = 0, heard_ = 0;
  std::vector<std::byte> answers_;
};

void add_piece(fuzz::Input& input, unsigned connection, How how, std::span<const std::byte> bytes) {
  fuzz::append_value(input, static_cast<std::uint8_t>(connection));
  fuzz::append_value(input, static_cast<std::uint8_t>(how));
  fuzz::append_value(input, static_cast<std::uint16_t>(bytes.size()));
  fuzz::append(input, bytes);
}
void add(fuzz::Input& input, unsigned connection, const std::function<void(wire::Control::Builder)>& fill, How how = framed) {
  MessageWriter writer;
  fill(writer.root<wire::Control>());
  add_piece(input, connection, how, writer.finish());
}

void hello(wire::Control::Builder control) {
  auto message = control.initHello();
  message.setProtocolVersion(wire::PROTOCOL_VERSION);
  message.setProgram("program");
  message.setHostName("client");
  message.setProcessId(7);
}
void hello_with_token(wire::Control::Builder control) {
  hello(control);
  control.getHello().setToken("fargpu_known");
}
const kj::byte job[16] = {1, 2, 3};
void held_lease(wire::Control::Builder control) {
  auto request = control.initLeaseRequest();
  request.setGpus(1);
  request.setMemoryBytes(std::uint64_t{1} << 30);
  request.setComputePercent(50);
  request.setJob(capnp::Data::Reader(job, sizeof(job)));
  request.setHold(true);
}
void status(wire::Control::Builder control) { control.setStatusRequest(); }

}  // namespace

namespace fuzz {

std::vector<Input> seeds() {
  std::vector<Input> all;
  const auto session = [&](auto&&... steps) {
    Input input;
    (steps(input), ...);
    all.push_back(std::move(input));
  };
  const auto say = [](unsigned connection, auto&& fill, How how = framed) {
    return [connection, fill, how](Input& input) { add(input, connection, fill, how); };
  };
  const auto in_job = [](wire::Control::Builder control) {
    hello(control);
    control.getHello().setJob(capnp::Data::Reader(job, sizeof(job)));
  };
  session(say(0, hello), say(0, status));
  session(say(0, hello_with_token), say(0, [](auto control) { control.initSchedulingRequest().setPolicy("fair"); }), say(0, status));
  session(say(0, hello_with_token), say(0, [](auto control) {
            auto share = control.initSchedulingRequest().initShare();
            share.setSession(1);
            share.setWeight(300);
          }));
  session(say(0, hello), say(0, held_lease), say(1, in_job), say(1, status), say(2, hello), say(2, held_lease), say(2, status));
  session(say(0, hello), say(0, held_lease, then_close), say(1, hello_with_token), say(1, held_lease), say(1, status));
  session(say(0, hello), say(0, [](auto control) {  // more than there is, waiting
            held_lease(control);
            control.getLeaseRequest().setMemoryBytes(std::uint64_t{7} << 30);
          }), say(1, hello), say(1, [](auto control) {
            held_lease(control);
            control.getLeaseRequest().setMemoryBytes(std::uint64_t{6} << 30);
            control.getLeaseRequest().setWaitMs(5);
            const kj::byte other[16] = {4};
            control.getLeaseRequest().setJob(capnp::Data::Reader(other, sizeof(other)));
          }));
  session(say(0, hello), say(0, [](auto control) {
            auto variable = control.initLeaseRequest().initEnvironment(1)[0];
            variable.setName("CUDA_NOT_ONE_OF_THEM");
            variable.setValue("1");
          }));
  session(say(0, hello), say(0, [](auto control) { control.initLeaseRequest().setGpus(2); }));
  session(say(0, [](auto control) {
    const kj::byte ticket[32] = {1};
    control.initAttach().setTicket(capnp::Data::Reader(ticket, sizeof(ticket)));
  }));
  session(say(0, [](auto control) {
    const kj::byte name[16] = {1};
    control.initRoute().setTicketName(capnp::Data::Reader(name, sizeof(name)));
  }));
  session(say(0, [](auto control) { control.initLane().setSessionId(1); }));
  session(say(0, [](auto control) { control.initHello().setProtocolVersion(1); }));
  session(say(0, [](auto control) { control.initGoodbye().setText("that was all"); }, raw));
  return all;
}

}  // namespace fuzz
}  // namespace fargpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  fuzz::Bytes input({data, size});
  {
    std::array<Caller, connections> callers;
    for (unsigned pieces = 0; !input.empty() && pieces < 64; ++pieces) {
      Caller& caller = callers[input.take<std::uint8_t>() % connections];
      const auto how = input.take<std::uint8_t>();
      caller.send(input.take(input.take<std::uint16_t>()), (how & raw) == 0);
      if (how & then_close) caller.close();
    }
  }
  Host::instance().go_on();
  fuzz::expect(Host::instance().promised() == 0, "a worker that is kept for a client that has gone");
  return 0;
}
