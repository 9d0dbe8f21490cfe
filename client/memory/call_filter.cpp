#include "call_filter.h"

#if defined(__x86_64__)

#include <link.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

namespace fargpu::client {
namespace {

struct Code {
  std::uint64_t begin, last;
};

// Where this process makes such calls: the C library, and the program itself, whose runtime may do without that. A
// program that is started from here inherits the filter. Its C library lies elsewhere, and its calls pass, although it
// may know nothing of fargpu.
std::vector<Code> callers() {
  std::vector<Code> found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        const std::string_view path = info->dlpi_name, name = path.substr(path.rfind('/') + 1);
        if (!path.empty() && !name.starts_with("libc.so") && !name.starts_with("libpthread.so")) return 0;
        for (const ElfW(Phdr) & part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          if (part.p_type != PT_LOAD || !(part.p_flags & PF_X) || part.p_memsz == 0) continue;
          const std::uint64_t begin = info->dlpi_addr + part.p_vaddr, last = begin + part.p_memsz - 1;
          const std::uint64_t middle = last >> 32 << 32;  // a filter looks at halves of addresses
          auto& list = *static_cast<std::vector<Code>*>(argument);
          if (begin >= middle) list.push_back({begin, last});
          else list.insert(list.end(), {{begin, middle - 1}, {middle, last}});
        }
        return 0;
      },
      &found);
  return found;
}

/// A filter in the making: instructions, and where they jump to.
class Program {
 public:
  enum Target { next, caller, buffer, mark, stop, pass };
  static constexpr std::uint8_t targets = pass + 1;

  void begin(Target target) { places_[target] = code_.size(); }
  void load(std::size_t offset) { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset))); }
  /// `condition`: BPF_JEQ, BPF_JGE or BPF_JGT, of what was loaded and this value.
  void jump(unsigned condition, std::uint64_t value, Target yes, Target no) {
    jumps_.push_back({code_.size(), yes, no});
    add(BPF_JUMP(BPF_JMP | BPF_K | condition, static_cast<std::uint32_t>(value), 0, 0));
  }
  /// Skips so many instructions where it does not hold.
  void unless_skip(unsigned condition, std::uint64_t value, std::uint8_t count) {
    add(BPF_JUMP(BPF_JMP | BPF_K | condition, static_cast<std::uint32_t>(value), 0, count));
  }
  void answer(std::uint32_t action) { add(BPF_STMT(BPF_RET | BPF_K, action)); }

  std::vector<sock_filter> finish() {
    const auto distance = [&](std::size_t from, Target to) {
      return to == next ? std::uint8_t{0} : static_cast<std::uint8_t>(places_[to] - from - 1);
    };
    for (const auto& [place, yes, no] : jumps_) {
      code_[place].jt = distance(place, yes);
      code_[place].jf = distance(place, no);
    }
    return code_;
  }

 private:
  void add(const sock_filter& instruction) { code_.push_back(instruction); }

  struct Jump {
    std::size_t place;
    Target yes, no;
  };
  std::vector<sock_filter> code_;
  std::vector<Jump> jumps_;
  std::array<std::size_t, targets> places_{};
};

// Jumps reach 255 instructions.
constexpr std::size_t callers_max = 32;

}  // namespace

std::vector<sock_filter> call_filter(const std::array<Window, 2>& windows) {
  constexpr std::size_t half = 4;
  constexpr auto high = [](std::uint64_t address) { return address >> 32; };
  Program program;
  program.load(offsetof(seccomp_data, arch));
  program.jump(BPF_JEQ, AUDIT_ARCH_X86_64, Program::next, Program::pass);
  program.load(offsetof(seccomp_data, nr));
  for (const long number : {SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_sendto})
    program.jump(BPF_JEQ, static_cast<std::uint64_t>(number), Program::buffer, Program::next);
  program.jump(BPF_JEQ, SYS_recvfrom, Program::buffer, Program::pass);
  program.begin(Program::buffer);  // of which the upper half is looked at: what is stopped for nothing is made likewise
  program.load(offsetof(seccomp_data, args[1]) + half);
  for (const Window& window : windows) {
    if (window.bytes == 0) continue;
    program.unless_skip(BPF_JGE, high(window.base), 1);
    program.jump(BPF_JGT, high(window.base + window.bytes - 1), Program::next, Program::caller);
  }
  program.jump(BPF_JEQ, 0, Program::pass, Program::pass);
  program.begin(Program::caller);
  auto code = callers();
  code.resize(std::min(code.size(), callers_max));
  for (const Code& range : code) {
    program.load(offsetof(seccomp_data, instruction_pointer) + half);
    program.unless_skip(BPF_JEQ, high(range.begin), 3);
    program.load(offsetof(seccomp_data, instruction_pointer));
    program.unless_skip(BPF_JGE, range.begin, 1);
    program.jump(BPF_JGT, range.last, Program::next, Program::mark);
  }
  program.jump(BPF_JEQ, 0, Program::pass, Program::pass);
  program.begin(Program::mark);
  program.load(offsetof(seccomp_data, args[5]));
  program.jump(BPF_JEQ, let_pass, Program::next, Program::stop);
  program.load(offsetof(seccomp_data, args[5]) + half);
  program.jump(BPF_JEQ, high(let_pass), Program::pass, Program::stop);
  program.begin(Program::stop);
  program.answer(SECCOMP_RET_TRAP);
  program.begin(Program::pass);
  program.answer(SECCOMP_RET_ALLOW);
  return program.finish();
}

}  // namespace fargpu::client

#endif
