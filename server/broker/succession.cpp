#include "succession.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include "event_log.h"
#include "passed_descriptors.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/same_secret.h"
#include "settings_error.h"

namespace fargpu::server {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t key_bytes = 32, seal_bytes = 32;
constexpr const char* door_prefix = "worker-";
constexpr std::size_t door_number_bytes = 8;
constexpr int above_those_of_children = 16;  // descriptors at which a worker finds what it is given
/// In which all workers must have told all: each does nothing but that.
constexpr auto telling_max = std::chrono::seconds(5);
/// More than a session can share, hold and let in.
constexpr std::size_t packets_max = 65'536 + limits::shares_max + 1024, told_bytes_max = 64u << 20;
constexpr std::size_t descriptors_max = limits::shares_max + 1;
/// Of all together.
constexpr std::size_t told_bytes_of_all_max = 512u << 20;

sockaddr_un address_of(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.native().size(), sizeof(address.sun_path) - 1));
  return address;
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) throw SystemError("no random numbers");
  return bytes;
}

std::array<std::byte, seal_bytes> seal_of(std::span<const std::byte> key, std::span<const std::byte> record) {
  std::array<std::byte, seal_bytes> seal{};
  unsigned bytes = 0;
  if (!::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
              reinterpret_cast<const unsigned char*>(record.data()), record.size(),
              reinterpret_cast<unsigned char*>(seal.data()), &bytes) ||
      bytes != seal.size())
    throw SystemError("the record of a session cannot be sealed");
  return seal;
}

/// The process that listens at the other end; -1 if none is known.
pid_t process_behind(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? peer.pid : -1;
}

constexpr int packets_at_once = 1024;

enum class Progress { more, all, ended };

bool has_ended(const Succession::Found& worker) {
  pollfd process{worker.exit.number(), POLLIN, 0};
  return ::poll(&process, 1, 0) > 0;
}

/// Takes what a worker has told by now, but not more than some, because others tell too. `ended`: its process is gone.
/// Throws ProtocolError for what is no such thing. `told_bytes`: of all of them.
Progress hear(Succession::Found& worker, std::size_t& told_bytes) {
  for (int packets = 0; packets < packets_at_once; ++packets) {
    if (worker.link.number() < 0) return has_ended(worker) ? Progress::ended : Progress::more;
    auto packet = receive_from_worker(worker.link.number());
    if (!packet) break;
    if (packet->message.empty()) {
      worker.link = {};
      continue;
    }
    if (packet->had_more) throw ProtocolError("it passes more than one descriptor at a time");
    told_bytes += packet->message.size();
    worker.told_bytes += packet->message.size();
    worker.told_descriptors += packet->descriptor >= 0;
    worker.told.push_back({std::move(packet->message), Descriptor(packet->descriptor, close_aside)});
    if (worker.told.size() > packets_max || worker.told_bytes > told_bytes_max ||
        worker.told_descriptors > descriptors_max || told_bytes > told_bytes_of_all_max)
      throw ProtocolError("it tells more than there can be");
    MessageReader reader(worker.told.back().bytes);
    const auto what = reader.root<wire::WorkerMessage>().which();
    if ((worker.told.size() == 1) != (what == wire::WorkerMessage::KEPT))
      throw ProtocolError("it has no record of a session");
    if (what == wire::WorkerMessage::RECOUNTED) return Progress::all;
  }
  return Progress::more;
}

void leave_alone(const Succession::Found& worker, const std::string& why) {
  EventLog::warn("session not taken over",
                 {{"worker", worker.process}, {"reason", why}, {"meaning", Succession::left_alone}});
}

/// Waits until one of them has told more, or ended. False when it is time to go on without them.
bool wait_for(const std::list<Succession::Found>& workers, std::chrono::steady_clock::time_point deadline) {
  std::vector<pollfd> polled;
  for (const Succession::Found& worker : workers) {
    const Descriptor& last = worker.link.number() >= 0 ? worker.link : worker.exit;
    polled.push_back({last.number(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return left > 0 && ::poll(polled.data(), polled.size(), static_cast<int>(left)) != 0;
}

}  // namespace

Succession::Succession(std::string folder) : folder_(std::move(folder)) {
  if (!possible()) return;
  const auto refuse = [&](const std::string& what) {
    throw SettingsError(fmt::format("runtime_folder: {} {}", folder_.string(), what));
  };
  const auto refuse_system = [&](const char* what) {
    refuse(fmt::format("{} ({}); name a folder that this user may write to", what, std::strerror(errno)));
  };
  if (address_of(folder_ / fmt::format("{}{:016x}", door_prefix, 0)).sun_path[sizeof(sockaddr_un::sun_path) - 2] != 0)
    refuse("is a path too long for Unix sockets in it; name a shorter one");
  std::error_code error;
  fs::create_directories(folder_.parent_path(), error);
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) refuse_system("cannot be made");
  struct stat there {};
  if (::stat(folder_.c_str(), &there) != 0) refuse_system("cannot be looked at");
  if (!S_ISDIR(there.st_mode) || there.st_uid != ::geteuid() || (there.st_mode & 077) != 0)
    refuse(
        "must be a folder of this user that nobody else may enter (mode 0700): a process that enters it can take over "
        "sessions");
  lock_ = Descriptor(::open((folder_ / "key").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock_.number() < 0) refuse_system("has a key that cannot be opened");
  if (::flock(lock_.number(), LOCK_EX | LOCK_NB) != 0)
    refuse("is in use by another fargpud; each needs one of its own");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error))
    if (entry.path().filename().native().starts_with(door_prefix)) doors_.push_back(entry.path());
  key_.resize(key_bytes);
  if (::pread(lock_.number(), key_.data(), key_bytes, 0) == static_cast<ssize_t>(key_bytes)) return;
  key_ = random_bytes(key_bytes);
  if (::pwrite(lock_.number(), key_.data(), key_bytes, 0) != static_cast<ssize_t>(key_bytes))
    refuse_system("cannot be written to");
}

Succession::Door Succession::make_door() const {
  if (!possible()) return {};
  std::uint64_t number = 0;
  std::memcpy(&number, random_bytes(door_number_bytes).data(), door_number_bytes);
  const fs::path path = folder_ / fmt::format("{}{:016x}", door_prefix, number);
  const sockaddr_un address = address_of(path);
  const Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  Descriptor socket(made.number() < 0 ? -1 : ::fcntl(made.number(), F_DUPFD_CLOEXEC, above_those_of_children));
  if (socket.number() < 0 || ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    throw SystemError(fmt::format("no door for a worker at {}: {}", path.string(), std::strerror(errno)));
  return {std::move(socket), path.string()};
}

std::vector<std::byte> Succession::seal(std::span<const std::byte> record) const {
  if (!possible()) return {};
  const auto seal = seal_of(key_, record);
  std::vector<std::byte> sealed(seal.begin(), seal.end());
  sealed.insert(sealed.end(), record.begin(), record.end());
  return sealed;
}

std::span<const std::byte> Succession::unseal(std::span<const std::byte> sealed) const {
  if (sealed.size() <= seal_bytes) return {};
  const auto record = sealed.subspan(seal_bytes);
  return same_secret(seal_of(key_, record), sealed.first(seal_bytes)) ? record : std::span<const std::byte>();
}

// All at once: one that is silent keeps none waiting that tells.
std::vector<Succession::Found> Succession::find() const {
  std::list<Found> silent = knock();
  std::vector<Found> found;
  std::size_t told_bytes = 0;
  const auto deadline = std::chrono::steady_clock::now() + telling_max;
  const auto take = [&](Found& worker) {
    try {
      const Progress progress = hear(worker, told_bytes);
      if (progress == Progress::more) return false;
      if (progress == Progress::ended) ::unlink(worker.door.c_str());
      else found.push_back(std::move(worker));
    } catch (const kj::Exception& failed) {
      leave_alone(worker, failed.getDescription().cStr());
    } catch (const std::exception& failed) {
      leave_alone(worker, failed.what());
    }
    return true;
  };
  do silent.remove_if(take);
  while (!silent.empty() && wait_for(silent, deadline));
  for (const Found& worker : silent) leave_alone(worker, "it does not answer");
  return found;
}

std::string Succession::host_identity() const {
  std::array<char, 32> text{};
  const auto fresh = [&] {
    char* at = text.data();
    for (const std::byte byte : random_bytes(text.size() / 2))
      at = fmt::format_to(at, "{:02x}", std::to_integer<unsigned>(byte));
    return std::string(text.begin(), text.end());
  };
  if (!possible()) return fresh();
  const fs::path path = folder_ / "host";
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  const auto bytes = static_cast<ssize_t>(text.size());
  if (file.number() >= 0 && ::pread(file.number(), text.data(), text.size(), 0) == bytes &&
      std::all_of(text.begin(), text.end(), [](unsigned char letter) { return std::isxdigit(letter) != 0; }))
    return {text.begin(), text.end()};
  fresh();
  if (file.number() < 0 || ::pwrite(file.number(), text.data(), text.size(), 0) != bytes)
    throw SettingsError(
        fmt::format("runtime_folder: {} cannot be written to ({})", path.string(), std::strerror(errno)));
  return {text.begin(), text.end()};
}

std::size_t Succession::doors_left() const {
  return static_cast<std::size_t>(
      std::count_if(doors_.begin(), doors_.end(), [](const fs::path& door) { return fs::exists(door); }));
}

std::list<Succession::Found> Succession::knock() const {
  std::list<Found> reached;
  for (const fs::path& door : doors_) {
    const sockaddr_un address = address_of(door);
    Found worker;
    worker.door = door;
    worker.link = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), close_aside);
    if (::connect(worker.link.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      if (errno == ECONNREFUSED) ::unlink(door.c_str());
      else leave_alone(worker, door.string() + ": " + std::strerror(errno));
      continue;
    }
    worker.process = process_behind(worker.link.number());
    worker.exit = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, worker.process, 0)));
    if (worker.exit.number() >= 0) reached.push_back(std::move(worker));
    else if (errno == ESRCH) ::unlink(door.c_str());
    else leave_alone(worker, std::string("pidfd_open: ") + std::strerror(errno));
  }
  return reached;
}

}  // namespace fargpu::server
