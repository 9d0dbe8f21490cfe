// What a worker says to its broker. A worker executes what strangers sent, and may be theirs: whatever it says, the
// broker goes on, answers its clients in frames that can be read, and another tenant's session and what it shares stay
// as they were. An input is pieces: of which of the workers that the broker has started, what happens, and the bytes of
// a packet on its link.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "broker_host.h"
#include "fuzz.h"
#include "protocol/message.h"
#include "server/worker_link.h"

namespace fargpu {
namespace {

using fuzz::BrokerHost;
using fuzz::Caller;
using fuzz::PretendedWorker;

enum What : std::uint8_t { says, says_with_descriptor, dies, session_begins, session_begins_on_one, whats };

constexpr std::uint64_t shared_bytes = 0xb0a7'0000;  // by the neighbour, and by nobody else's leave
const kj::byte neighbours_key[16] = {'n', 'e', 'i', 'g', 'h'};

int another_descriptor() {
  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  fuzz::expect(descriptor >= 0, "no descriptor");
  return descriptor;
}

// A client asks for a session and has it, if the broker thinks that it may.
void begin_session(const char* token, std::uint32_t gpus) {
  Caller caller, session;
  std::vector<kj::byte> ticket;
  caller.on_answer = [&](wire::Control::Reader answer) {
    if (!answer.isLeaseAnswer()) return;
    const auto bytes = answer.getLeaseAnswer().getTicket();
    ticket.assign(bytes.begin(), bytes.end());
  };
  caller.send([&](wire::Control::Builder control) {
    auto hello = control.initHello();
    hello.setProtocolVersion(wire::PROTOCOL_VERSION);
    hello.setToken(token);
  });
  caller.send([&](wire::Control::Builder control) { control.initLeaseRequest().setGpus(gpus); });
  if (ticket.empty()) return;
  session.send([&](wire::Control::Builder control) {
    control.initAttach().setTicket(capnp::Data::Reader(ticket.data(), ticket.size()));
  });
}

void look(const char* token) {
  Caller caller;
  caller.send([&](wire::Control::Builder control) {
    auto hello = control.initHello();
    hello.setProtocolVersion(wire::PROTOCOL_VERSION);
    hello.setToken(token);
  });
  bool told = false;
  caller.on_answer = [&](wire::Control::Reader answer) { told = answer.isStatus(); };
  caller.send([](wire::Control::Builder control) { control.setStatusRequest(); });
  fuzz::expect(told, "a broker that does not say how it is");
}

// Reads what the broker has said to a worker; true if that was, among others, what the neighbour shares.
bool hears_of_share(const PretendedWorker& worker) {
  bool heard = false;
  while (const auto packet = server::receive_link(worker.link)) {
    if (packet->descriptor >= 0) ::close(packet->descriptor);
    if (packet->message.empty()) break;
    MessageReader reader(packet->message);
    const auto message = reader.root<wire::WorkerMessage>();
    if (message.isFetched() && message.getFetched().getShare().getBytes() == shared_bytes) heard = true;
  }
  return heard;
}

void fetch_neighbours(wire::WorkerMessage::Builder message) {
  message.initFetch().setKey(capnp::Data::Reader(neighbours_key, sizeof(neighbours_key)));
}

// Another tenant's session, which lasts while inputs come and go.
pid_t neighbour() {
  static const pid_t process = [] {
    BrokerHost& host = BrokerHost::instance("policy = \"fair\"\n");
    begin_session("fargpu_known", 2);
    const auto& workers = host.workers().all();
    const auto found = std::find_if(workers.begin(), workers.end(),
                                    [](const server::Worker& w) { return w.state == server::Worker::State::session; });
    fuzz::expect(found != workers.end(), "no session for the neighbour");
    for (const PretendedWorker& worker : host.processes()) {
      if (worker.process != found->process) continue;
      const int descriptor = another_descriptor();
      const auto share = [](wire::WorkerMessage::Builder message) {
        message.initShare().setKey(capnp::Data::Reader(neighbours_key, sizeof(neighbours_key)));
        message.getShare().setBytes(shared_bytes);
      };
      fuzz::expect(server::send_link(worker.link, share, descriptor), "the neighbour cannot share");
      ::close(descriptor);
    }
    host.go_on();
    return found->process;
  }();
  return process;
}

void expect_neighbour_untouched() {
  BrokerHost& host = BrokerHost::instance();
  const pid_t process = neighbour();
  const auto& workers = host.workers().all();
  fuzz::expect(std::any_of(workers.begin(), workers.end(),
                           [&](const server::Worker& w) {
                             return w.process == process && w.state == server::Worker::State::session && w.calls == 0;
                           }),
               "the neighbour's session is another than it was");
  for (const PretendedWorker& worker : host.processes()) {
    if (worker.process != process) continue;
    hears_of_share(worker);
    fuzz::expect(server::send_link(worker.link, fetch_neighbours), "the neighbour cannot speak");
    host.go_on();
    fuzz::expect(hears_of_share(worker), "what the neighbour shares is gone");
    // It holds it no more: of loans there are only so many.
    const auto let_go = [](wire::WorkerMessage::Builder message) {
      message.setLetGo(capnp::Data::Reader(neighbours_key, sizeof(neighbours_key)));
    };
    fuzz::expect(server::send_link(worker.link, let_go), "the neighbour cannot speak");
    host.go_on();
  }
}

// Every other worker ends, and one is ready as at first.
void begin_anew() {
  BrokerHost& host = BrokerHost::instance();
  const pid_t kept = neighbour();
  host.on_start = [](PretendedWorker&) {};
  for (const PretendedWorker& worker : host.processes())
    if (worker.process != kept) host.end(worker.process, 9);
  host.go_on();
  for (std::size_t i = 0; i < host.processes().size(); ++i) {  // those that took the places of the ended
    const PretendedWorker worker = host.processes()[i];
    if (worker.process != kept) server::send_link(worker.link, fuzz::say_ready);
  }
  host.go_on();
  const auto& workers = host.workers().all();
  fuzz::expect(host.workers().sessions() == 1, "a session without its worker");
  fuzz::expect(std::none_of(workers.begin(), workers.end(),
                            [&](const server::Worker& w) {
                              return w.state != server::Worker::State::ready && w.process != kept;
                            }),
               "a worker that is neither ready nor gone");
}

void add(fuzz::Input& input, What what, unsigned worker,
         const std::function<void(wire::WorkerMessage::Builder)>& fill = {}) {
  MessageWriter writer;
  if (fill) fill(writer.root<wire::WorkerMessage>());
  const auto bytes = writer.finish();
  fuzz::append_value(input, static_cast<std::uint8_t>(what));
  fuzz::append_value(input, static_cast<std::uint8_t>(worker));
  fuzz::append_value(input, static_cast<std::uint16_t>(bytes.size()));
  fuzz::append(input, bytes);
}

}  // namespace

namespace fuzz {

std::vector<Input> seeds() {
  std::vector<Input> all;
  const auto words = [&](auto&&... steps) {
    Input input;
    (steps(input), ...);
    all.push_back(std::move(input));
  };
  const auto step = [](What what, unsigned worker = 0,
                       const std::function<void(wire::WorkerMessage::Builder)>& fill = {}) {
    return [=](Input& input) { add(input, what, worker, fill); };
  };
  const auto key = [](unsigned char first) {
    kj::Array<kj::byte> bytes = kj::heapArray<kj::byte>(16);
    std::fill(bytes.begin(), bytes.end(), first);
    return bytes;
  };
  const auto usage = [](wire::WorkerMessage::Builder message) {
    auto u = message.initUsage();
    u.setCalls(7);
    u.initBusyNs(2).set(0, 1'000'000);
    u.setWaitedNs(5);
  };
  const auto activity = [](bool wants, bool busy) {
    return [=](wire::WorkerMessage::Builder message) {
      auto a = message.initActivity();
      a.setWants(wants);
      a.setBusy(busy);
      a.setNumber(3);
      a.setSinceNs(1);
    };
  };
  const auto share = [=](std::int32_t device) {
    return [=](wire::WorkerMessage::Builder message) {
      auto s = message.initShare();
      s.setKey(key(7));
      s.setDevice(device);
      s.setBytes(2u << 20);
      if (device < 0) s.initEvent(64);
    };
  };
  const auto fetch = [=](wire::WorkerMessage::Builder message) { message.initFetch().setKey(key(7)); };
  const auto unshare = [=](wire::WorkerMessage::Builder message) { message.setUnshare(key(7)); };
  const auto let_go = [=](wire::WorkerMessage::Builder message) { message.setLetGo(key(7)); };
  const auto share_on = [=](wire::WorkerMessage::Builder message) {
    share(0)(message);
    message.getShare().setKey(key(8));
    message.getShare().setCameBy(key(7));
  };
  const auto unshare_neighbours = [](wire::WorkerMessage::Builder message) {
    message.setUnshare(capnp::Data::Reader(neighbours_key, 16));
  };
  const auto ended = [](wire::WorkerMessage::Builder message) { message.setEnded("the client has left"); };
  const auto failed = [](wire::WorkerMessage::Builder message) { message.setFailed("no driver"); };
  const auto one_device = [](wire::WorkerMessage::Builder message) {
    say_ready(message);
    auto facts = message.getReady().initFacts();
    facts.initDevices(1)[0].setMemoryBytes(std::uint64_t{8} << 30);
    facts.initErrorTexts(1)[0].setText("what the driver says");
    auto peer = facts.initPeers(1)[0];
    peer.setTo(1);
    peer.initAttributes(1);
  };
  words(step(session_begins), step(says, 0, usage), step(says, 0, activity(true, false)),
        step(says, 0, activity(false, true)), step(says, 0, activity(false, false)), step(says, 0, ended));
  words(step(session_begins), step(says_with_descriptor, 0, share(0)), step(says, 0, fetch), step(says, 0, unshare),
        step(says, 0, fetch));
  words(step(session_begins), step(says, 0, share(-1)), step(says, 1, say_ready), step(session_begins),
        step(says, 1, fetch), step(dies));
  words(step(session_begins), step(session_begins), step(says_with_descriptor, 0, share(0)), step(says, 1, fetch),
        step(says_with_descriptor, 1, share_on), step(says, 0, unshare), step(says, 1, let_go), step(dies, 1));
  words(step(session_begins), step(says_with_descriptor, 0, share(0)), step(says, 0, fetch), step(dies),
        step(says, 1, let_go));
  words(step(session_begins), step(says, 0, fetch_neighbours), step(says, 0, unshare_neighbours));
  words(step(session_begins), step(says, 1, say_ready), step(says, 2, say_ready));
  words(step(session_begins), step(says, 1, failed), step(session_begins_on_one), step(says, 1, say_ready));
  words(step(session_begins_on_one), step(says, 1, one_device), step(says, 1, activity(true, true)), step(dies, 1));
  words(step(says, 0, say_ready));
  words(step(session_begins), step(says, 0, [](wire::WorkerMessage::Builder message) { message.initTurn(); }));
  return all;
}

}  // namespace fuzz
}  // namespace fargpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  fuzz::Bytes input({data, size});
  const pid_t kept = neighbour();
  BrokerHost& host = BrokerHost::instance();
  begin_anew();
  for (unsigned pieces = 0; !input.empty() && pieces < 64; ++pieces) {
    const auto what = static_cast<What>(input.take<std::uint8_t>() % whats);
    const auto number = input.take<std::uint8_t>();
    const auto bytes = input.take(input.take<std::uint16_t>());
    if (what == session_begins) begin_session("", 0);
    if (what == session_begins_on_one) begin_session("", 1);
    if (what == session_begins || what == session_begins_on_one) continue;
    std::vector<PretendedWorker> others;
    for (const PretendedWorker& worker : host.processes())
      if (worker.process != kept) others.push_back(worker);
    if (others.empty()) continue;
    const PretendedWorker& worker = others[number % others.size()];
    if (what == dies) {
      host.end(worker.process, 11);
    } else {
      const int descriptor = what == says_with_descriptor ? another_descriptor() : -1;
      (void)server::send_packet(worker.link, std::as_bytes(bytes), descriptor);
      if (descriptor >= 0) ::close(descriptor);
    }
    host.go_on();
    for (const PretendedWorker& other : others)
      if (std::any_of(host.processes().begin(), host.processes().end(),
                      [&](const PretendedWorker& w) { return w.process == other.process; }))
        fuzz::expect(!hears_of_share(other), "another tenant's share");
  }
  look("");
  look("fargpu_known");
  expect_neighbour_untouched();
  return 0;
}
