#pragma once
// etcd, as a process of a test's own.

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fargpu::test {

/// Whether there is etcd and the plugin for it. Says it if not.
bool has_etcd();

/// A port of this machine that nobody uses.
unsigned free_port();

/// One member of an etcd. It lies in a folder in memory, and ends with the object.
class EtcdServer {
 public:
  struct Options {
    std::vector<std::string> more;  ///< options of etcd
    bool encrypted = false;         ///< with the certificates that `more` names
    std::filesystem::path data;     ///< copied, to begin with
    std::string series;             ///< of which it says to be, such as 3.3
  };
  EtcdServer() : EtcdServer(Options{}) {}
  explicit EtcdServer(Options options);
  /// Several that are one etcd.
  static std::vector<std::unique_ptr<EtcdServer>> cluster(unsigned members);
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  const std::filesystem::path& data() const { return data_; }
  void start();
  void signal(int number);
  void kill();  ///< at once, and waits for its end
  /// Runs etcdctl. False if it fails.
  bool control(const std::vector<std::string>& words, const std::vector<std::string>& more = {}) const;

 private:
  EtcdServer(std::vector<std::string> options, unsigned port, std::filesystem::path folder);

  std::string program_ = "/usr/bin/etcd";
  std::vector<std::string> options_;
  unsigned port_ = 0;
  std::filesystem::path folder_, data_;
  pid_t pid_ = 0;
};

}  // namespace fargpu::test
