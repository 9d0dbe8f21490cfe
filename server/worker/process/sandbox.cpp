#include "sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <pwd.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

[[noreturn]] void fail(const std::string& what) { throw SystemError(what + ": " + std::strerror(errno)); }

// Each is refused with EPERM, as a system refuses what one may not do.
constexpr int denied[] = {
    SYS_execve,
    SYS_execveat,  // other programs
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,  // other processes
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_tkill,
    SYS_ioprio_set,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsmount,  // other views of files
    SYS_unshare,
    SYS_setns,
    SYS_open_by_handle_at,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_bpf,
    SYS_perf_event_open,  // the kernel
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog,
    SYS_iopl,
    SYS_ioperm,
};

/// A program of classic BPF, one rule after the other.
class Filter {
 public:
  Filter() {
    // Numbers mean other calls in other architectures' ways to call.
    load(offsetof(seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    give(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
    constexpr unsigned x32 = 0x4000'0000;
    emit(BPF_JMP | BPF_JGE | BPF_K, x32, 0, 1);
    give(SECCOMP_RET_KILL_PROCESS);
  }
  void deny(int call, int error = EPERM) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1);
    give(SECCOMP_RET_ERRNO | static_cast<unsigned>(error));
  }
  /// Only with this first argument.
  void allow_with(int call, unsigned argument) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 4);
    load(offsetof(seccomp_data, args[0]));
    emit(BPF_JMP | BPF_JEQ | BPF_K, argument, 1, 0);
    give(SECCOMP_RET_ERRNO | EPERM);
    give(SECCOMP_RET_ALLOW);
  }
  /// Only with these first two.
  void allow_with(int call, unsigned first, unsigned second) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 6);
    load(offsetof(seccomp_data, args[0]));
    emit(BPF_JMP | BPF_JEQ | BPF_K, first, 0, 2);
    load(offsetof(seccomp_data, args[1]));
    emit(BPF_JMP | BPF_JEQ | BPF_K, second, 1, 0);
    give(SECCOMP_RET_ERRNO | EPERM);
    give(SECCOMP_RET_ALLOW);
  }
  /// Only with zero, or this number, as the first argument. Else nothing is done, and `error` answered.
  void allow_for(int call, unsigned self, unsigned error) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 5);
    load(offsetof(seccomp_data, args[0]));
    emit(BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, self, 1, 0);
    give(SECCOMP_RET_ERRNO | error);
    give(SECCOMP_RET_ALLOW);
  }
  /// Not with any of these as the second argument.
  void deny_seconds(int call, std::initializer_list<unsigned> seconds) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, static_cast<int>(2 * seconds.size() + 2));
    load(offsetof(seccomp_data, args[1]));
    for (const unsigned second : seconds) {
      emit(BPF_JMP | BPF_JEQ | BPF_K, second, 0, 1);
      give(SECCOMP_RET_ERRNO | EPERM);
    }
    give(SECCOMP_RET_ALLOW);
  }
  /// Not with any of these bits in the first argument.
  void allow_without(int call, unsigned bits) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 4);
    load(offsetof(seccomp_data, args[0]));
    emit(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    give(SECCOMP_RET_ERRNO | EPERM);
    give(SECCOMP_RET_ALLOW);
  }
  void install() {
    give(SECCOMP_RET_ALLOW);
    sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) fail("seccomp");
  }

 private:
  void load(std::size_t offset) { emit(BPF_LD | BPF_W | BPF_ABS, static_cast<unsigned>(offset), 0, 0); }
  void give(unsigned action) { emit(BPF_RET | BPF_K, action, 0, 0); }
  void emit(int operation, unsigned operand, int if_true, int if_false) {
    code_.push_back({static_cast<unsigned short>(operation), static_cast<unsigned char>(if_true),
                     static_cast<unsigned char>(if_false), operand});
  }
  std::vector<sock_filter> code_;
};

// Those of root, where fargpud runs as root and without a worker_user: files of others, devices, the kernel.
void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2]{};
  if (::syscall(SYS_capset, &header, none) != 0) fail("capabilities");
}

}  // namespace

void become_user(const std::string& name) {
  errno = 0;
  const passwd* const user = ::getpwnam(name.c_str());
  if (!user) throw SystemError("there is no user '" + name + "' for workers (setting worker_user)");
  if (::initgroups(user->pw_name, user->pw_gid) != 0 || ::setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 ||
      ::setresuid(user->pw_uid, user->pw_uid, user->pw_uid) != 0)
    fail("cannot become user '" + name + "' (setting worker_user; only root can)");
}

void enter_sandbox() {
  drop_capabilities();
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // what a tenant has in memory is not for files
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs");
  Filter filter;
  // F_SETOWN and FIOSETOWN direct a chosen signal, even SIGKILL, at any process of this user. These rules come first,
  // because the driver calls ioctl often, and a filter runs from the top.
  filter.deny_seconds(SYS_ioctl, {FIOSETOWN, SIOCSPGRP});
  filter.deny_seconds(SYS_fcntl, {F_SETOWN, F_SETOWN_EX});
  for (const int call : denied) filter.deny(call);
  // The driver talks by such sockets, and listens on one, without which it does not initialise (tried with 580.159.04:
  // denying listen makes cuInit return OPERATING_SYSTEM). The session's connection is here already.
  filter.allow_with(SYS_socket, AF_UNIX);
  const auto self = static_cast<unsigned>(::getpid());
  filter.allow_with(SYS_kill, self);
  filter.allow_with(SYS_tgkill, self);
  filter.allow_for(SYS_prlimit64, self, EPERM);  // RLIMIT_CPU of another process would end it
  filter.allow_with(SYS_setpriority, PRIO_PROCESS, 0);
  // Threads are set by numbers that cannot be told from those of other processes. What the driver's libraries set of
  // theirs (580: affinities, and the policy of threads that compile, which are not started if it fails) is not needed.
  for (const int call : {SYS_sched_setaffinity, SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr})
    filter.allow_for(call, self, 0);
  // Threads, not namespaces. What clone3 is to do stands in memory, where it cannot be seen: libraries go back to
  // clone.
  filter.allow_without(SYS_clone, CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                      CLONE_NEWPID | CLONE_NEWNET);
  filter.deny(SYS_clone3, ENOSYS);
  filter.install();
}

void hide_memory() { ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }

}  // namespace fargpu::server
