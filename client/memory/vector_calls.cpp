#include "vector_calls.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include "system_calls.h"

namespace fargpu::client {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t function_slot = R_X86_64_JUMP_SLOT, address_slot = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr std::uint32_t function_slot = R_AARCH64_JUMP_SLOT, address_slot = R_AARCH64_GLOB_DAT;
#else
#error "relocations of this processor are not known here"
#endif

// Vectors that are too long are the kernel's to refuse.
void touch(const iovec* vector, std::size_t count, bool writing) {
  if (!vector || count > IOV_MAX) return;
  for (const iovec& part : std::span(vector, count))
    touch_pages(reinterpret_cast<std::uint64_t>(part.iov_base), part.iov_len, writing);
}

void touch(const msghdr& message, bool writing) { touch(message.msg_iov, message.msg_iovlen, writing); }

void touch(const mmsghdr* messages, unsigned count, bool writing) {
  if (!messages || count > IOV_MAX) count = messages ? IOV_MAX : 0;  // as many as the kernel takes at once
  for (const mmsghdr& message : std::span(messages, count)) touch(message.msg_hdr, writing);
}

// Another thread may give the pages to the GPU between the touch and the call.
template <class Call>
ssize_t until_there(int file, bool reading, Call&& call) {
  ssize_t result = call();
  for (int again = 0; again < calls_again_max && result < 0 && errno == EFAULT && may_call_again(file, reading);
       ++again)
    result = call();
  return result;
}

// What libraries call instead. `call` is the C library's own: this library's calls stay as they are.
template <auto call, bool writing>
struct Vector;
template <class... Rest, ssize_t (*call)(int, const iovec*, int, Rest...), bool writing>
struct Vector<call, writing> {
  static ssize_t touched(int file, const iovec* vector, int count, Rest... rest) {
    return until_there(file, writing, [&] {
      touch(vector, count < 0 ? 0 : static_cast<std::size_t>(count), writing);
      return call(file, vector, count, rest...);
    });
  }
};

ssize_t send_message(int socket, const msghdr* message, int flags) {
  return until_there(socket, false, [&] {
    if (message) touch(*message, false);
    return ::sendmsg(socket, message, flags);
  });
}
ssize_t receive_message(int socket, msghdr* message, int flags) {
  if (message) touch(*message, true);
  return ::recvmsg(socket, message, flags);
}
int send_messages(int socket, mmsghdr* messages, unsigned count, int flags) {
  touch(messages, count, false);
  return ::sendmmsg(socket, messages, count, flags);
}
int receive_messages(int socket, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  touch(messages, count, true);
  return ::recvmmsg(socket, messages, count, flags, timeout);
}

// Pages come by SIGSEGV, and calls that the filter of system_calls.cpp stops by SIGSYS. A thread that blocks these when
// its own doing brings them ends the process.
template <auto call>
int unblocked(int how, const sigset_t* set, sigset_t* before) {
  if (!set || how == SIG_UNBLOCK) return call(how, set, before);
  sigset_t others = *set;
  ::sigdelset(&others, SIGSEGV);
  ::sigdelset(&others, SIGSYS);
  return call(how, &others, before);
}

struct Call {
  std::string_view name;
  void* touched;
};

template <auto call, bool writing>
void* touched() {
  return reinterpret_cast<void*>(&Vector<call, writing>::touched);
}

const std::array calls{
    Call{"readv", touched<::readv, true>()},
    Call{"preadv", touched<::preadv, true>()},
    Call{"preadv64", touched<::preadv64, true>()},
    Call{"preadv2", touched<::preadv2, true>()},
    Call{"preadv64v2", touched<::preadv64v2, true>()},
    Call{"writev", touched<::writev, false>()},
    Call{"pwritev", touched<::pwritev, false>()},
    Call{"pwritev64", touched<::pwritev64, false>()},
    Call{"pwritev2", touched<::pwritev2, false>()},
    Call{"pwritev64v2", touched<::pwritev64v2, false>()},
    Call{"sendmsg", reinterpret_cast<void*>(&send_message)},
    Call{"recvmsg", reinterpret_cast<void*>(&receive_message)},
    Call{"sendmmsg", reinterpret_cast<void*>(&send_messages)},
    Call{"recvmmsg", reinterpret_cast<void*>(&receive_messages)},
    Call{"pthread_sigmask", reinterpret_cast<void*>(&unblocked<::pthread_sigmask>)},
    Call{"sigprocmask", reinterpret_cast<void*>(&unblocked<::sigprocmask>)},
};

/// A loaded library, as the loader tells of it.
class Library {
 public:
  explicit Library(const dl_phdr_info& info) : base_(info.dlpi_addr) {
    for (const ElfW(Phdr) & part : std::span(info.dlpi_phdr, info.dlpi_phnum)) {
      if (part.p_type == PT_DYNAMIC) dynamic_ = reinterpret_cast<const ElfW(Dyn)*>(base_ + part.p_vaddr);
      if (part.p_type == PT_GNU_RELRO) sealed_ = {base_ + part.p_vaddr, base_ + part.p_vaddr + part.p_memsz};
      const std::uint64_t here = reinterpret_cast<std::uint64_t>(&calls) - base_ - part.p_vaddr;
      if (part.p_type != PT_LOAD) continue;
      if (here < part.p_memsz) own_ = true;
      end_ = std::max<std::uint64_t>(end_, part.p_vaddr + part.p_memsz);
    }
  }

  /// False where the loader, on another thread, is not done with the library yet.
  bool redirect() const {
    if (!dynamic_ || own_) return true;
    const auto* const symbols = at<ElfW(Sym)>(DT_SYMTAB);
    const auto* const names = at<char>(DT_STRTAB);
    if (!symbols || !names) return true;
    bool done = true;
    const auto visit = [&](const ElfW(Rela) * first, std::uint64_t bytes) {
      if (!first) return;
      for (const ElfW(Rela) & entry : std::span(first, bytes / sizeof(*first))) {
        const auto type = ELF64_R_TYPE(entry.r_info);
        if (type != function_slot && type != address_slot) continue;
        const std::string_view name = names + symbols[ELF64_R_SYM(entry.r_info)].st_name;
        const auto* const found =
            std::find_if(calls.begin(), calls.end(), [&](const Call& call) { return call.name == name; });
        // One that may be missing stays without an address where it is.
        const bool weak = ELF64_ST_BIND(symbols[ELF64_R_SYM(entry.r_info)].st_info) == STB_WEAK;
        if (found != calls.end())
          done = (put(reinterpret_cast<void**>(base_ + entry.r_offset), found->touched) || weak) && done;
      }
    };
    if (value(DT_PLTREL) == DT_RELA) visit(at<ElfW(Rela)>(DT_JMPREL), value(DT_PLTRELSZ));
    visit(at<ElfW(Rela)>(DT_RELA), value(DT_RELASZ));
    return done;
  }

 private:
  std::uint64_t value(std::int64_t tag) const {
    for (const ElfW(Dyn)* entry = dynamic_; entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == tag) return entry->d_un.d_val;
    return 0;
  }
  template <class T>
  const T* at(std::int64_t tag) const {
    const std::uint64_t address = value(tag);
    return reinterpret_cast<const T*>(address < base_ && address != 0 ? base_ + address : address);
  }
  // Other threads may be calling through it: they find one function or the other. A slot that is left alone does no
  // harm. The loader lists a library before it has written its slots. One that it has not come to yet has an address
  // within the file, or none: what is written there, the loader would write over, or add its own to.
  bool put(void** slot, void* function) const {
    const std::atomic_ref<void*> place(*slot);
    if (place.load() == function) return true;
    if (base_ != 0 && reinterpret_cast<std::uint64_t>(place.load()) < end_) return false;
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const auto page = [&](std::uint64_t address) { return address / page_bytes; };
    const auto address = reinterpret_cast<std::uint64_t>(slot);
    const bool sealed = page(sealed_[0]) <= page(address) && page(address) < page(sealed_[1]);
    if (!sealed || !write_sealed(address, function)) {
      void* const begin = reinterpret_cast<void*>(page(address) * page_bytes);
      if (sealed && ::mprotect(begin, page_bytes, PROT_READ | PROT_WRITE) != 0) return true;
      place.store(function);
      if (sealed) ::mprotect(begin, page_bytes, PROT_READ);
    }
    return true;
  }

  // By way of the process's file, where there is one that can be written, rather than by making the page writable for a
  // while: the loader may still be writing there itself, and protects the page when it is done.
  static bool write_sealed(std::uint64_t address, void* function) {
    const int memory = ::open("/proc/self/mem", O_WRONLY | O_CLOEXEC);
    if (memory < 0) return false;
    const ssize_t written = ::pwrite(memory, &function, sizeof(function), static_cast<off_t>(address));
    ::close(memory);
    return written == sizeof(function);
  }

  const std::uint64_t base_;
  std::uint64_t end_ = 0;  // of the library, by its file's addresses
  const ElfW(Dyn) * dynamic_ = nullptr;
  std::array<std::uint64_t, 2> sealed_{};  // what the loader protects when it is done
  bool own_ = false;
};

// New libraries are behind those seen before, unless some are gone.
struct Seen {
  unsigned long long added = 0, removed = 0;
  std::size_t libraries = 0;
  unsigned looks = 0;  // at one that the loader was not done with
};

/// After so many looks a library counts as done.
constexpr unsigned looks_max = 1000;

}  // namespace

void watch_vector_calls() {
  static std::mutex mutex;
  static Seen seen;
  struct Visit {
    Seen before = seen;
    std::size_t place = 0;
    bool waits = false;
  };
  const std::lock_guard lock(mutex);
  Visit visit;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        auto& [before, place, waits] = *static_cast<Visit*>(argument);
        const bool looks = before.looks > 0;
        if (!looks && info->dlpi_adds == before.added && info->dlpi_subs == before.removed) return 1;
        const bool is_new = place >= before.libraries || info->dlpi_subs != before.removed;
        if (is_new && !Library(*info).redirect() && before.looks < looks_max && !std::exchange(waits, true))
          seen.looks = before.looks + 1;
        ++place;
        if (!waits) seen = {info->dlpi_adds, info->dlpi_subs, place, 0};
        return 0;
      },
      &visit);
}

}  // namespace fargpu::client
