// What a worker may still do. Each case in a process of its own, which cannot leave the sandbox again.

#include "server/worker/process/sandbox.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sched.h>
#include <string>
#include <thread>
#include <utility>

#include "protocol/errors.h"
#include "protocol/rdma/context.h"

using namespace fargpu;
using namespace fargpu::server;

namespace {

/// Whether something holds in a sandbox; -1 if the process did not get so far.
int inside(const std::function<bool()>& holds) {
  const pid_t child = ::fork();
  if (child == 0) {
    enter_sandbox();
    ::_exit(holds() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool refused(long result) { return result == -1 && errno == EPERM; }

}  // namespace

TEST_CASE("sandbox: no other programs, no networks, no other processes, no new rights") {
  const pid_t parent = ::getpid();
  CHECK(inside([] {
          char path[] = "/bin/true";
          char* arguments[] = {path, nullptr};
          return refused(::execv(path, arguments));
        }) == 1);
  CHECK(inside([] {
          return refused(::socket(AF_INET, SOCK_STREAM, 0)) && refused(::socket(AF_INET6, SOCK_DGRAM, 0)) &&
                 refused(::socket(AF_NETLINK, SOCK_RAW, 0));
        }) == 1);
  CHECK(inside([&] {
          return refused(::kill(parent, 0)) && refused(::kill(-1, 0)) &&
                 refused(::syscall(SYS_tgkill, parent, parent, 0));
        }) == 1);
  CHECK(inside([&] { return refused(::ptrace(PTRACE_ATTACH, parent, nullptr, nullptr)); }) == 1);
  CHECK(inside([&] {
          char byte;
          iovec here{&byte, 1}, there{&byte, 1};
          return refused(::process_vm_readv(parent, &here, 1, &there, 1, 0));
        }) == 1);
  CHECK(inside([] {
          return refused(::unshare(CLONE_NEWUSER)) && refused(::mount("none", "/mnt", "tmpfs", 0, nullptr)) &&
                 refused(::chroot("/"));
        }) == 1);
  CHECK(inside([] {
          return refused(::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
        }) == 1);
  CHECK(inside([] {
          return refused(::syscall(SYS_bpf, 0, nullptr, 0)) && refused(::syscall(SYS_userfaultfd, 0)) &&
                 refused(::syscall(SYS_io_uring_setup, 1, nullptr));
        }) == 1);
  CHECK(inside([] { return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1; }) == 1);
  CHECK(inside([] {
          rlimit limit{};
          return ::getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max == 0;
        }) == 1);
}

TEST_CASE("sandbox: nobody else's limits, priorities, and signals of descriptors") {
  const pid_t parent = ::getpid();
  CHECK(inside([&] {
          rlimit limit{};
          return refused(::prlimit(parent, RLIMIT_CPU, nullptr, &limit)) &&
                 ::prlimit(0, RLIMIT_CPU, nullptr, &limit) == 0 &&
                 ::prlimit(::getpid(), RLIMIT_CPU, &limit, nullptr) == 0;
        }) == 1);
  CHECK(inside([&] {
          int ends[2];
          f_owner_ex owner{F_OWNER_PID, parent};
          int process = parent;
          return ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && refused(::fcntl(ends[0], F_SETOWN, parent)) &&
                 refused(::fcntl(ends[0], F_SETOWN_EX, &owner)) && refused(::ioctl(ends[0], FIOSETOWN, &process)) &&
                 refused(::ioctl(ends[0], SIOCSPGRP, &process)) && ::fcntl(ends[0], F_GETOWN) == 0 &&
                 ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && ::ioctl(ends[0], FIONREAD, &process) == 0;
        }) == 1);
  CHECK(inside([&] {
          return refused(::setpriority(PRIO_PROCESS, static_cast<id_t>(parent), 19)) &&
                 refused(::setpriority(PRIO_USER, 0, 19)) && ::setpriority(PRIO_PROCESS, 0, 19) == 0 &&
                 refused(::syscall(SYS_ioprio_set, 1, parent, 0));
        }) == 1);
  // What is said to be done of another one is not.
  const int policy = ::sched_getscheduler(0);
  CHECK(inside([&] {
          const sched_param none{};
          cpu_set_t first;
          CPU_ZERO(&first);
          CPU_SET(0, &first);
          return ::sched_setscheduler(parent, SCHED_IDLE, &none) == 0 && ::sched_getscheduler(parent) == policy &&
                 ::sched_setaffinity(parent, sizeof(first), &first) == 0 &&
                 ::sched_setscheduler(0, SCHED_BATCH, &none) == 0 && ::sched_getscheduler(0) == SCHED_BATCH;
        }) == 1);
  CHECK(::sched_getscheduler(0) == policy);
}

TEST_CASE("sandbox: what a driver needs is there") {
  CHECK(inside([] { return ::socket(AF_UNIX, SOCK_STREAM, 0) >= 0; }) == 1);
#ifndef __SANITIZE_THREAD__  // which does not know the threads of a process that was forked
  CHECK(inside([] {
          int count = 0;
          std::thread thread([&] { ++count; });
          thread.join();
          return count == 1;
        }) == 1);
  // As libraries of the driver start threads that compile.
  CHECK(inside([] {
          pthread_attr_t attributes;
          sched_param none{};
          pthread_t thread;
          return ::pthread_attr_init(&attributes) == 0 &&
                 ::pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED) == 0 &&
                 ::pthread_attr_setschedpolicy(&attributes, SCHED_OTHER) == 0 &&
                 ::pthread_attr_setschedparam(&attributes, &none) == 0 &&
                 ::pthread_create(
                     &thread, &attributes, [](void*) -> void* { return nullptr; }, nullptr) == 0 &&
                 ::pthread_join(thread, nullptr) == 0;
        }) == 1);
#endif
  CHECK(inside([] { return ::kill(::getpid(), 0) == 0; }) == 1);
  CHECK(inside([] { return ::prctl(PR_SET_TIMERSLACK, 1000) == 0; }) == 1);
  CHECK(inside([] {
          hide_memory();
          return ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0 && ::access("/proc/self/maps", R_OK) == 0;
        }) == 1);
}

#ifdef FARGPU_UCX

namespace {

/// RDMA as a worker opens it before it enters its sandbox, with a line, whose thread of UCX runs. By UCX's TCP, in the
/// place of a card, which the sandbox of a real worker does not have.
struct OpenedRdma {
  OpenedRdma() {
    events.message = [](void*, const void*, std::size_t, const void*, std::size_t) {};
    events.flushed = [](void*) {};
    events.failed = [](void*, const char*) {};
    line = open_line();
  }
  rdma::Line* open_line() {
    return devices.functions().open_line(devices.context(), 4096, nullptr, &events, why.data());
  }

  rdma::OpenedDevices devices{rdma::plugin(), "lo", "tcp"};
  rdma::Events events{};
  std::array<char, rdma::why_bytes> why{};
  rdma::Line* line = nullptr;
};

/// Whether something holds in a sandbox that was entered with RDMA.
int inside_with_rdma(const std::function<bool(OpenedRdma&)>& holds) {
  const pid_t child = ::fork();
  if (child == 0) {
    OpenedRdma opened;
    if (!opened.line) ::_exit(2);
    enter_sandbox();
    ::_exit(holds(opened) ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Threads of this process that are not in the sandbox, and all of them.
std::pair<int, int> threads_outside() {
  int outside = 0, all = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    const std::string text(std::istreambuf_iterator<char>(status), {});
    outside += text.find("Seccomp:\t2") == std::string::npos;
    ++all;
  }
  return {outside, all};
}

}  // namespace

TEST_CASE("sandbox: what is forbidden stays forbidden with RDMA") {
  const pid_t parent = ::getpid();
  CHECK(inside_with_rdma([](OpenedRdma&) {
          return refused(::socket(AF_INET, SOCK_STREAM, 0)) && refused(::socket(AF_INET6, SOCK_DGRAM, 0)) &&
                 refused(::socket(AF_NETLINK, SOCK_RAW, 0)) && refused(::socket(AF_IB, SOCK_DGRAM, 0)) &&
                 refused(::socket(AF_PACKET, SOCK_RAW, 0));
        }) == 1);
  CHECK(inside_with_rdma([&](OpenedRdma&) {
          char path[] = "/bin/true";
          char* arguments[] = {path, nullptr};
          char byte;
          iovec here{&byte, 1}, there{&byte, 1};
          return refused(::execv(path, arguments)) && refused(::kill(parent, 0)) &&
                 refused(::ptrace(PTRACE_ATTACH, parent, nullptr, nullptr)) &&
                 refused(::process_vm_readv(parent, &here, 1, &there, 1, 0)) && refused(::unshare(CLONE_NEWUSER)) &&
                 refused(::syscall(SYS_bpf, 0, nullptr, 0));
        }) == 1);
}

TEST_CASE("sandbox: UCX's own threads are in it") {
  // A child of a process in which UCX runs has no thread of UCX. The test unit.sandbox is none.
  const bool fresh = ::dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD) == nullptr;
  CHECK(inside_with_rdma([&](OpenedRdma&) {
          const auto [outside, all] = threads_outside();
          return outside == 0 && all >= (fresh ? 2 : 1);
        }) == 1);
}

TEST_CASE("sandbox: UCX opens no connection of a network there, and says why") {
  CHECK(inside_with_rdma([](OpenedRdma& opened) {
          return !opened.open_line() &&
                 std::string(opened.why.data()).find("UCX has no end of a connection for us") != std::string::npos;
        }) == 1);
}

#endif

TEST_CASE("sandbox: users that there are not") { CHECK_THROWS_AS(become_user("no such user"), SystemError); }
