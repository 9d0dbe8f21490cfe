#include "etcd_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>

namespace fargpu::test {
namespace {

constexpr const char* etcdctl = "/usr/bin/etcdctl";

std::filesystem::path new_folder() {
  std::string name =
      std::filesystem::is_directory("/dev/shm") ? "/dev/shm/fargpu-etcd-XXXXXX" : "/tmp/fargpu-etcd-XXXXXX";
  if (!::mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
  return name;
}

// The child ends with the test.
pid_t begin(const char* program, const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> arguments;
  arguments.push_back(const_cast<char*>(program));
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("no process");
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(file, 1);
  ::dup2(file, 2);
  ::setenv("ETCDCTL_API", "3", 1);
  ::execv(program, arguments.data());
  ::_exit(127);
}

std::string url(unsigned port, bool encrypted = false) {
  return (encrypted ? "https://127.0.0.1:" : "http://127.0.0.1:") + std::to_string(port);
}

std::string contents(const std::filesystem::path& file) {
  std::ifstream from(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(from), {}};
}

}  // namespace

bool has_etcd() {
#ifdef FARGPU_ETCD_PLUGIN
  if (::access("/usr/bin/etcd", X_OK) == 0 && ::access(etcdctl, X_OK) == 0) return true;
  std::fprintf(stderr, "SKIPPED: there is no etcd (packages etcd-server and etcd-client)\n");
#else
  std::fprintf(stderr, "SKIPPED: the plugin for etcd is not built\n");
#endif
  return false;
}

unsigned free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(socket);
  if (!bound) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

EtcdServer::EtcdServer(std::vector<std::string> options, unsigned port, std::filesystem::path folder)
    : options_(std::move(options)), port_(port), folder_(std::move(folder)), data_(folder_ / "data") {
  start();
}

EtcdServer::EtcdServer(Options options) : port_(free_port()), folder_(new_folder()), data_(folder_ / "data") {
  if (!options.data.empty()) std::filesystem::copy(options.data, data_, std::filesystem::copy_options::recursive);
  if (!options.series.empty()) {
    // A copy in which its version stands otherwise.
    pid_ = begin(program_.c_str(), {"--version"}, folder_ / "version");
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
    std::string own = contents(folder_ / "version"), program = contents(program_);
    own = own.substr(0, own.find('\n')).substr(own.rfind(' ', own.find('\n')) + 1);
    program.replace(program.find(own), options.series.size(), options.series);
    program_ = folder_ / "etcd";
    std::ofstream(program_, std::ios::binary) << program;
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
  }
  const std::string peer = url(free_port());
  options_ = {"--name=m0",
              "--data-dir=" + data_.string(),
              "--unsafe-no-fsync",
              "--listen-client-urls=" + url(port_, options.encrypted),
              "--advertise-client-urls=" + url(port_, options.encrypted),
              "--listen-peer-urls=" + peer,
              "--initial-advertise-peer-urls=" + peer,
              "--initial-cluster=m0=" + peer,
              "--log-level=error",
              "--heartbeat-interval=20",
              "--election-timeout=200"};
  options_.insert(options_.end(), options.more.begin(), options.more.end());
  start();
}

std::vector<std::unique_ptr<EtcdServer>> EtcdServer::cluster(unsigned members) {
  std::vector<std::string> peers;
  std::string all;
  for (unsigned i = 0; i < members; ++i) {
    peers.push_back(url(free_port()));
    all += (i > 0 ? ",m" : "m") + std::to_string(i) + "=" + peers.back();
  }
  std::vector<std::unique_ptr<EtcdServer>> servers;
  for (unsigned i = 0; i < members; ++i) {
    const std::filesystem::path folder = new_folder();
    const unsigned port = free_port();
    servers.emplace_back(new EtcdServer(
        {"--name=m" + std::to_string(i), "--data-dir=" + (folder / "data").string(), "--unsafe-no-fsync",
         "--listen-client-urls=" + url(port), "--advertise-client-urls=" + url(port), "--listen-peer-urls=" + peers[i],
         "--initial-advertise-peer-urls=" + peers[i], "--initial-cluster=" + all, "--log-level=error",
         "--heartbeat-interval=50", "--election-timeout=500"},
        port, folder));
  }
  return servers;
}

EtcdServer::~EtcdServer() {
  kill();
  std::filesystem::remove_all(folder_);
}

void EtcdServer::start() { pid_ = begin(program_.c_str(), options_, folder_ / "log"); }

void EtcdServer::signal(int number) {
  ::kill(pid_, number);
  if (number == SIGSTOP) ::waitpid(pid_, nullptr, WUNTRACED);  // a thread of it may still answer until it has stopped
}

void EtcdServer::kill() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

bool EtcdServer::control(const std::vector<std::string>& words, const std::vector<std::string>& more) const {
  std::vector<std::string> all = more;
  if (more.empty()) all.push_back("--endpoints=" + endpoint());
  all.insert(all.end(), words.begin(), words.end());
  const pid_t pid = begin(etcdctl, all, folder_ / "log");
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && status == 0;
}

}  // namespace fargpu::test
