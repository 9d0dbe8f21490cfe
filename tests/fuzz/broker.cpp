// The broker before strangers and clients: control messages on up to three connections at once, by its Unix socket.
// What it answers are frames in order that can be read, and once the connections are closed nothing of them is left. An
// input is pieces: of which connection, how, how many bytes, and those bytes, which get a frame's head with the right
// numbers unless the piece says that they are to go as they are.

#include <algorithm>
#include <array>
#include <functional>

#include "broker_host.h"
#include "fuzz.h"
#include "protocol/message.h"

namespace fargpu {
namespace {

using fuzz::BrokerHost;
using fuzz::Caller;

constexpr std::size_t connections = 3;
enum How : std::uint8_t { framed = 0, raw = 1, then_close = 2 };

// Workers that are promised to somebody. (One that is still starting is, until it is ready.)
long promised() {
  const auto& workers = BrokerHost::instance().workers().all();
  return std::count_if(workers.begin(), workers.end(),
                       [](const server::Worker& worker) { return worker.state == server::Worker::State::reserved; });
}

void add_piece(fuzz::Input& input, unsigned connection, How how, std::span<const std::byte> bytes) {
  fuzz::append_value(input, static_cast<std::uint8_t>(connection));
  fuzz::append_value(input, static_cast<std::uint8_t>(how));
  fuzz::append_value(input, static_cast<std::uint16_t>(bytes.size()));
  fuzz::append(input, bytes);
}
void add(fuzz::Input& input, unsigned connection, const std::function<void(wire::Control::Builder)>& fill,
         How how = framed) {
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
  session(say(0, hello_with_token), say(0, [](auto control) { control.initAdministrationRequest().setPolicy("fair"); }),
          say(0, status));
  session(say(0, hello_with_token), say(0, [](auto control) {
            auto share = control.initAdministrationRequest().initShare();
            share.setSession(1);
            share.setWeight(300);
          }));
  session(say(0, hello), say(0, held_lease), say(1, in_job), say(1, status), say(2, hello), say(2, held_lease),
          say(2, status));
  session(say(0, hello), say(0, held_lease, then_close), say(1, hello_with_token), say(1, held_lease), say(1, status));
  session(say(0, hello),
          say(0,
              [](auto control) {  // more than there is, waiting
                held_lease(control);
                control.getLeaseRequest().setMemoryBytes(std::uint64_t{7} << 30);
              }),
          say(1, hello), say(1, [](auto control) {
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
  session(say(
      0, [](auto control) { control.initGoodbye().setText("that was all"); }, raw));
  return all;
}

}  // namespace fuzz
}  // namespace fargpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  fuzz::Bytes input({data, size});
  BrokerHost& host = BrokerHost::instance();
  {
    std::array<Caller, connections> callers;
    for (unsigned pieces = 0; !input.empty() && pieces < 64; ++pieces) {
      Caller& caller = callers[input.take<std::uint8_t>() % connections];
      const auto how = input.take<std::uint8_t>();
      caller.send(input.take(input.take<std::uint16_t>()), (how & raw) == 0);
      if (how & then_close) caller.close();
    }
  }
  host.go_on();
  fuzz::expect(promised() == 0, "a worker that is kept for a client that has gone");
  return 0;
}
