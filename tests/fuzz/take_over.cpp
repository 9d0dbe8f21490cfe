// What is behind the doors of an earlier broker's workers, said to the broker that comes: records, accounts, what the
// sessions share and hold. Workers execute what strangers sent, and may be theirs, or of another release. Whatever they
// say, the broker goes on, and another tenant's session is taken over with what it has, and with nothing else. An input
// is pieces: which door, what happens behind it, and the bytes of a packet or of the tenant's account.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "broker_host.h"
#include "fuzz.h"
#include "protocol/message.h"
#include "server/broker/session_record.h"
#include "server/broker/take_over.h"
#include "server/worker_link.h"

namespace fargpu {
namespace {

using fuzz::BrokerHost;
using server::Descriptor;
namespace fs = std::filesystem;

enum What : std::uint8_t { says, says_with_descriptor, keeps, keeps_another_account, recounts, scribbles, whats };

constexpr std::size_t doors = 3;  // of strangers; that of the neighbour is the one behind
constexpr pid_t first_process = 20'000'000;
constexpr std::uint64_t mib = 1u << 20;
constexpr std::uint64_t shared_bytes = 0xb0a7'0000;  // by the neighbour
const kj::byte neighbours_key[16] = {'n', 'e', 'i', 'g', 'h'};

struct Packet {
  std::vector<std::byte> bytes;
  int descriptor = -1;  // lent
  bool last = false;
};

/// A pretended worker with a session of the broker before.
struct Door {
  pid_t process = -1;
  Descriptor listens, link, exit;
  std::vector<Packet> words;
  sockaddr_un address{};

  void open(const fs::path& folder, std::size_t number) {
    process = first_process + static_cast<pid_t>(number);
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s/worker-%016zx", folder.c_str(), number);
    listens = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    fuzz::expect(::bind(listens.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                     ::listen(listens.number(), 1) == 0,
                 "no door");
    exit = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  /// The broker has knocked: all is said at once, since nothing else happens until the broker has heard it. A worker
  /// that does not say all has ended, or the broker would wait for the rest.
  void tell() {
    link = Descriptor(::accept4(listens.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    server::give_room(link.number());
    bool all = !words.empty() && words.back().last;
    for (const Packet& word : words)
      all = server::send_packet(link.number(), word.bytes, word.descriptor) && !word.bytes.empty() && all;
    if (all) return;
    ::shutdown(link.number(), SHUT_WR);
    end();
  }
  void end() { (void)::eventfd_write(exit.number(), 1); }
};
std::array<Door, doors + 1>* knocked;  // of the present input

Door* door_at(const sockaddr* address) {
  if (!knocked || address->sa_family != AF_UNIX) return nullptr;
  const auto* const path = reinterpret_cast<const sockaddr_un*>(address)->sun_path;
  const auto found = std::find_if(knocked->begin(), knocked->end(),
                                  [&](const Door& door) { return std::strcmp(door.address.sun_path, path) == 0; });
  return found == knocked->end() ? nullptr : &*found;
}

pid_t behind(int socket) {
  sockaddr_un peer{};
  socklen_t bytes = sizeof(peer);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return -1;
  const Door* const door = door_at(reinterpret_cast<const sockaddr*>(&peer));
  return door ? door->process : -1;
}

}  // namespace
}  // namespace fargpu

// What knocks at doors, asks what is behind, and hears of its end, called in place of the C library's.
extern "C" {

int __real_connect(int socket, const sockaddr* address, socklen_t bytes);
int __wrap_connect(int socket, const sockaddr* address, socklen_t bytes) {
  const int result = __real_connect(socket, address, bytes);
  if (fargpu::Door* const door = fargpu::door_at(address); door && result == 0) door->tell();
  return result;
}

int __real_getsockopt(int socket, int level, int name, void* value, socklen_t* bytes);
int __wrap_getsockopt(int socket, int level, int name, void* value, socklen_t* bytes) {
  const int result = __real_getsockopt(socket, level, name, value, bytes);
  if (result != 0 || level != SOL_SOCKET || name != SO_PEERCRED) return result;
  if (const pid_t process = fargpu::behind(socket); process > 0) static_cast<ucred*>(value)->pid = process;
  return result;
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  std::va_list rest;
  va_start(rest, number);
  std::array<long, 6> values;
  for (long& value : values) value = va_arg(rest, long);
  va_end(rest);
  using namespace fargpu;
  if (number == SYS_pidfd_open) {
    for (const Door& door : *knocked)
      if (door.process == static_cast<pid_t>(values[0])) return ::fcntl(door.exit.number(), F_DUPFD_CLOEXEC, 0);
    return -1;
  }
  if (number == SYS_pidfd_send_signal) return ::eventfd_write(static_cast<int>(values[0]), 1);
  return __real_syscall(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
}

namespace fargpu {
namespace {

fs::path& folder() {
  static fs::path made = [] {
    std::string name = fs::temp_directory_path() / "fargpu-fuzz-doors-XXXXXX";
    fuzz::expect(::mkdtemp(name.data()) != nullptr, "no folder for doors");
    return fs::path(name);
  }();
  return made;
}

// A broker with the devices that leases are of, and whatever leases there are.
server::Leases& leases() {
  static server::Leases* const made = [] {
    BrokerHost& host = BrokerHost::instance("policy = \"fair\"\n");
    auto* const fresh = new server::Leases(8);
    fresh->set_devices({16'384 * mib, 16'384 * mib});
    const auto before = fuzz::at_end;
    static const auto then = before;
    fuzz::at_end = [] {
      then();
      fs::remove_all(folder());
    };
    host.go_on();
    return fresh;
  }();
  return *made;
}

std::vector<std::byte> message(const std::function<void(wire::WorkerMessage::Builder)>& fill) {
  MessageWriter writer;
  fill(writer.root<wire::WorkerMessage>());
  const auto bytes = writer.finish();
  return {bytes.begin(), bytes.end()};
}

// What the broker before has left with the worker.
std::vector<std::byte> kept(const server::Succession& succession, const Door& door, const std::string& tenant,
                            std::uint64_t number, server::TenantAccount& account) {
  MessageWriter writer;
  auto record = writer.root<wire::SessionRecord>();
  record.setProcess(door.process);
  record.setSession(number);
  record.initClient().setTenant(tenant);
  record.setSlot(static_cast<std::uint32_t>(number));
  record.setAccount(server::account_number(account.descriptor()));
  record.setAccountLayout(server::TenantAccount::layout());
  auto lease = record.initLease();
  lease.setId(number + 1);
  const auto uuids = BrokerHost::instance().workers().device_uuids();
  auto devices = lease.initDevices(static_cast<unsigned>(uuids.size()));
  for (unsigned i = 0; i < devices.size(); ++i)
    devices.set(i, {reinterpret_cast<const kj::byte*>(uuids[i].data()), uuids[i].size()});
  const auto sealed = succession.seal(writer.finish());
  return message([&](wire::WorkerMessage::Builder m) {
    m.setKept(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(sealed.data()), sealed.size()));
  });
}

void recount(wire::WorkerMessage::Builder m) { m.initRecounted(); }

void write_share(wire::Share::Builder share, capnp::Data::Reader key, std::uint64_t bytes) {
  share.setKey(key);
  share.setBytes(bytes);
}

void expect_neighbour(const server::Workers& workers, const Door& door, std::uint64_t held) {
  const auto& all = workers.all();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const server::Worker& w) { return w.process == door.process; });
  fuzz::expect(found != all.end() && found->state == server::Worker::State::session && found->client.tenant == "lab" &&
                   found->session == doors,
               "the neighbour's session is not taken over");
  fuzz::expect(found->used_bytes(0) == held && found->used_bytes(1) == 0, "the neighbour holds what it does not have");
  const server::TenantUse use = leases().use_of("lab");
  fuzz::expect(use.memory_bytes == held && use.sessions == 1 && use.leases == 1, "the neighbour's quota is another's");
  fuzz::expect(std::ranges::all_of(all,
                                   [&](const server::Worker& w) {
                                     return !w.lease || &w == &*found || w.lease->lease().tenant == "default";
                                   }),
               "a stranger is of the neighbour's tenant");
}

// Whether a worker that asks for what the neighbour shares has it.
bool has_share(const Door& door) {
  const auto asks = message([](wire::WorkerMessage::Builder m) { m.initFetch().setKey({neighbours_key, 16}); });
  (void)server::send_packet(door.link.number(), asks);
  BrokerHost::instance().go_on();
  bool has = false;
  while (const auto packet = server::receive_link(door.link.number())) {
    const Descriptor descriptor(packet->descriptor);
    if (packet->message.empty()) break;
    MessageReader reader(packet->message);
    const auto said = reader.root<wire::WorkerMessage>();
    has = has || (said.isFetched() && said.getFetched().getShare().getBytes() == shared_bytes);
  }
  return has;
}

void add(fuzz::Input& input, std::size_t door, What what, std::span<const std::byte> bytes = {}) {
  fuzz::append_value(input, static_cast<std::uint8_t>(door));
  fuzz::append_value(input, static_cast<std::uint8_t>(what));
  fuzz::append_value(input, static_cast<std::uint16_t>(bytes.size()));
  fuzz::append(input, bytes);
}

}  // namespace

namespace fuzz {

std::vector<Input> seeds() {
  const auto key = [](unsigned char first) { return std::vector<kj::byte>(16, first); };
  const auto data = [](const std::vector<kj::byte>& bytes) { return capnp::Data::Reader(bytes.data(), bytes.size()); };
  const auto shares = message([&](wire::WorkerMessage::Builder m) { write_share(m.initShares(), data(key(7)), mib); });
  const auto shares_on = message([&](wire::WorkerMessage::Builder m) {
    write_share(m.initShares(), data(key(8)), mib);
    m.getShares().setCameBy(data(key(7)));
  });
  const auto shares_neighbours = message([](wire::WorkerMessage::Builder m) {
    write_share(m.initShares(), {neighbours_key, 16}, 1'000'000 * mib);
  });
  const auto holds = [&](unsigned char first) {
    return message([&](wire::WorkerMessage::Builder m) {
      auto held = m.initHolds();
      held.setKey(data(key(first)));
      held.setBytes(mib);
      held.setTimes(2);
    });
  };
  const auto admits = message([](wire::WorkerMessage::Builder m) { m.initAdmits(limits::lane_name_bytes + 32); });
  const auto away = message([](wire::WorkerMessage::Builder m) { m.initRecounted().setSince(1); });
  std::vector<Input> all(5);
  add(all[0], 0, keeps), add(all[0], 0, says, admits), add(all[0], 0, says, away);
  add(all[1], 0, keeps), add(all[1], 0, says_with_descriptor, shares), add(all[1], 0, recounts);
  add(all[1], 1, keeps), add(all[1], 1, says, holds(7)), add(all[1], 1, says_with_descriptor, shares_on);
  add(all[1], 1, recounts), add(all[1], 2, keeps), add(all[1], 2, says, holds(8)), add(all[1], 2, recounts);
  add(all[2], 0, keeps), add(all[2], 0, says, holds(9)), add(all[2], 0, recounts);
  add(all[2], 1, keeps), add(all[2], 1, says, holds(9)), add(all[2], 1, recounts);
  add(all[3], 0, keeps), add(all[3], 0, says_with_descriptor, shares_neighbours), add(all[3], 0, recounts);
  add(all[4], 0, keeps_another_account), add(all[4], 0, recounts), add(all[4], 1, recounts);
  add(all[4], 2, keeps), add(all[4], 2, scribbles, std::vector<std::byte>(512, std::byte{0xff}));
  add(all[4], 2, recounts);
  return all;
}

}  // namespace fuzz
}  // namespace fargpu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  fuzz::Bytes input({data, size});
  server::Leases& books = leases();
  BrokerHost& host = BrokerHost::instance();
  const int free_descriptor = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  ::close(free_descriptor);
  {
    std::array<Door, doors + 1> there;
    for (std::size_t i = 0; i < there.size(); ++i) there[i].open(folder(), i);
    knocked = &there;
    server::TenantAccount account(8), another(8), labs(8);
    const Descriptor thing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const server::Succession succession(folder());
    for (unsigned pieces = 0; !input.empty() && pieces < 64; ++pieces) {
      const std::size_t number = input.take<std::uint8_t>() % doors;
      const auto what = static_cast<What>(input.take<std::uint8_t>() % whats);
      const auto bytes = std::as_bytes(input.take(input.take<std::uint16_t>()));
      std::vector<Packet>& words = there[number].words;
      if (what == keeps || what == keeps_another_account)
        words.push_back({kept(succession, there[number], "default", number, account),
                         (what == keeps ? account : another).descriptor()});
      else if (what == recounts) words.push_back({message(recount), -1, /*last=*/true});
      else if (what == scribbles) (void)!::pwrite(account.descriptor(), bytes.data(), bytes.size(), 0);
      else words.push_back({{bytes.begin(), bytes.end()}, what == says_with_descriptor ? thing.number() : -1});
    }
    constexpr std::uint64_t held = 3 * mib;
    labs.slot(doors).held[0] = labs.slot(doors).charged[0] = held;
    there[doors].words = {{kept(succession, there[doors], "lab", doors, labs), labs.descriptor()},
                          {message([](wire::WorkerMessage::Builder m) {
                             write_share(m.initShares(), {neighbours_key, 16}, shared_bytes);
                           }),
                           thing.number()},
                          {message(recount), -1, /*last=*/true}};
    server::take_over_sessions(succession, books, host.workers());
    host.go_on();
    expect_neighbour(host.workers(), there[doors], held);
    for (const Door& door : there)
      fuzz::expect(!has_share(door) || door.process == there[doors].process, "another tenant's share");
    for (unsigned device = 0; device < 2; ++device)
      fuzz::expect(books.free_bytes(device) <= 16'384 * mib, "a device grows");
    for (Door& door : there) door.end();
    host.go_on();
    knocked = nullptr;
  }
  fuzz::expect(host.workers().sessions() == 0 && books.all().empty(), "a session or a lease without a worker");
  fuzz::expect(fs::directory_iterator(folder()) != fs::directory_iterator(), "no key");
  for (const auto& left : fs::directory_iterator(folder()))
    if (left.path().filename() != "key") fs::remove(left.path());
  const int now_free = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  ::close(now_free);
  fuzz::expect(now_free == free_descriptor, "a descriptor is left open");
  return 0;
}
