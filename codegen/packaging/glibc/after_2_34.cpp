// Debian 12's static libstdc++ and libgcc ask for two symbols newer than glibc 2.34, the oldest that any of the
// binaries supports. Hidden definitions of our own satisfy them; both do what the newer libc would, by older means.
// Debian's static libzstd asks for four more (zstd_trace.h), by which a program may trace it; a program that has them
// means its own libzstd.

#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>

extern "C" {

// glibc 2.36. Used by std::random_device.
__attribute__((visibility("hidden"))) std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  [[maybe_unused]] const ssize_t got = ::getrandom(&value, sizeof(value), 0);
  return value;
}

// glibc 2.35: where the unwinder finds the object that holds an address.
__attribute__((visibility("hidden"))) int _dl_find_object(void* address, dl_find_object* result) noexcept {
  struct Search {
    std::uintptr_t address;
    dl_find_object* result;
  } search{reinterpret_cast<std::uintptr_t>(address), result};
  const int found = ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        std::uintptr_t begin = ~std::uintptr_t{0}, end = 0, unwind = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          const std::uintptr_t at = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_GNU_EH_FRAME) unwind = at;
          if (segment.p_type != PT_LOAD) continue;
          if (at < begin) begin = at;
          if (at + segment.p_memsz > end) end = at + segment.p_memsz;
        }
        if (wanted.address < begin || wanted.address >= end || unwind == 0) return 0;
        *wanted.result = {};
        wanted.result->dlfo_map_start = reinterpret_cast<void*>(begin);
        wanted.result->dlfo_map_end = reinterpret_cast<void*>(end);
        wanted.result->dlfo_eh_frame = reinterpret_cast<void*>(unwind);
        return 1;
      },
      &search);
  return found ? 0 : -1;
}

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;
struct ZSTD_Trace;
__attribute__((visibility("hidden"))) unsigned long long ZSTD_trace_compress_begin(const ZSTD_CCtx_s*) noexcept {
  return 0;
}  // not traced
__attribute__((visibility("hidden"))) void ZSTD_trace_compress_end(unsigned long long, const ZSTD_Trace*) noexcept {}
__attribute__((visibility("hidden"))) unsigned long long ZSTD_trace_decompress_begin(const ZSTD_DCtx_s*) noexcept {
  return 0;
}
__attribute__((visibility("hidden"))) void ZSTD_trace_decompress_end(unsigned long long, const ZSTD_Trace*) noexcept {}

}  // extern "C"
