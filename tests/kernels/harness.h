#pragma once

// What the kernel programs share. Each is one .cu file with kernels and, in the other half of the
// same file, the host code that launches them through the driver API and checks what they did
// against the CPU. nvcc compiles the kernels to a fatbin with PTX, the C++ compiler the host code;
// the fatbin is linked in. The programs know nothing of what stands behind libcuda.so.1.
//
//   kernels_arith            lists the cases
//   kernels_arith CASE...    runs them, each in a context of its own, and prints PASS or FAIL

#ifndef __CUDACC__

#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

extern "C" const unsigned char kernel_image[];

namespace kernels {

struct Failed {};

/// Everything a case reports goes here; a case fails once anything was reported.
inline std::string& failure_text() {
  static std::string text;
  return text;
}

[[gnu::format(printf, 1, 2)]] inline void report(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  failure_text() += line;
  failure_text() += "\n";
}

inline const char* name_of(CUresult result) {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return name != nullptr ? name : "unknown";
}

inline void check(CUresult result, const char* call, int line) {
  if (result == CUDA_SUCCESS) return;
  report("line %d: %s gives %s", line, call, name_of(result));
  throw Failed();
}

inline void check_equal(CUresult got, CUresult wanted, const char* call, int line) {
  if (got == wanted) return;
  report("line %d: %s gives %s, not %s", line, call, name_of(got), name_of(wanted));
  throw Failed();
}

inline void check_true(bool holds, const char* condition, int line) {
  if (holds) return;
  report("line %d: %s does not hold", line, condition);
  throw Failed();
}

#define OK(call) ::kernels::check((call), #call, __LINE__)
#define GIVES(code, call) ::kernels::check_equal((call), (code), #call, __LINE__)
#define HOLDS(condition) ::kernels::check_true((condition), #condition, __LINE__)

/// Memory of the device for elements of one type.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) { OK(cuMemAlloc(&address_, bytes())); }
  Buffer(const std::vector<T>& values) : Buffer(values.size()) { put(values); }
  ~Buffer() { cuMemFree(address_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  CUdeviceptr address() const { return address_; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  void put(const std::vector<T>& values) {
    OK(cuMemcpyHtoD(address_, values.data(), values.size() * sizeof(T)));
    finish();
  }
  void clear() {
    OK(cuMemsetD8(address_, 0, bytes()));
    finish();
  }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    OK(cuMemcpyDtoH(values.data(), address_, bytes()));
    return values;
  }

 private:
  // Streams that do not wait for the default one see it too: a synchronous copy from pageable memory may return before
  // its last bytes are there ("API synchronization behavior").
  static void finish() { OK(cuStreamSynchronize(nullptr)); }

  CUdeviceptr address_ = 0;
  size_t count_;
};

struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

/// For kernels of one thread per element.
constexpr unsigned block_size = 128;
inline unsigned blocks_for(size_t count, unsigned block = block_size) {
  return static_cast<unsigned>((count + block - 1) / block);
}

/// The kernels of the program, loaded into the current context.
class Kernels {
 public:
  Kernels() { OK(cuModuleLoadData(&module_, kernel_image)); }
  ~Kernels() { cuModuleUnload(module_); }
  CUmodule module() const { return module_; }
  CUfunction get(const char* name) const {
    CUfunction function;
    OK(cuModuleGetFunction(&function, module_, name));
    return function;
  }

  template <class... Arguments>
  CUresult try_launch(const char* name, Grid grid, Grid block, unsigned shared_bytes, CUstream stream,
                      Arguments... arguments) const {
    void* pointers[] = {static_cast<void*>(&arguments)..., nullptr};
    return cuLaunchKernel(get(name), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream, pointers,
                          nullptr);
  }
  /// Launches and waits.
  template <class... Arguments>
  void run(const char* name, Grid grid, Grid block, Arguments... arguments) const {
    OK(try_launch(name, grid, block, 0, nullptr, arguments...));
    OK(cuCtxSynchronize());
  }
  template <class... Arguments>
  void run_with_shared(const char* name, Grid grid, Grid block, unsigned shared_bytes, Arguments... arguments) const {
    OK(try_launch(name, grid, block, shared_bytes, nullptr, arguments...));
    OK(cuCtxSynchronize());
  }

 private:
  CUmodule module_ = nullptr;
};

/// Random numbers that a failure can be repeated with: TEST_SEED sets the seed.
inline uint64_t seed() {
  static uint64_t value = [] {
    const char* text = std::getenv("TEST_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 0) : uint64_t{20240607};
  }();
  return value;
}

inline std::mt19937_64& generator() {
  static std::mt19937_64 engine(seed());
  return engine;
}

template <class T>
std::vector<T> random_values(size_t count, T least, T most) {
  std::vector<T> values(count);
  for (T& value : values) {
    if constexpr (std::is_floating_point_v<T>) value = std::uniform_real_distribution<T>(least, most)(generator());
    else
      value = static_cast<T>(
          std::uniform_int_distribution<int64_t>(static_cast<int64_t>(least), static_cast<int64_t>(most))(generator()));
  }
  return values;
}

template <class T>
std::string show(T value) {
  char text[64];
  if constexpr (std::is_floating_point_v<T>)
    std::snprintf(text, sizeof text, "%.9g (%a)", static_cast<double>(value), static_cast<double>(value));
  else
    std::snprintf(text, sizeof text, "%lld (%#llx)", static_cast<long long>(value),
                  static_cast<unsigned long long>(value));
  return text;
}

/// Bit for bit; any NaN equals any other.
template <class T>
bool is_same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (a != a && b != b) return true;
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& wanted,
                 const std::function<std::string(size_t)>& describe = {}) {
  HOLDS(got.size() == wanted.size());
  int shown = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (is_same(got[i], wanted[i])) continue;
    report("[%zu]%s%s: %s, not %s", i, describe ? " " : "", describe ? describe(i).c_str() : "", show(got[i]).c_str(),
           show(wanted[i]).c_str());
    if (++shown == 8) break;
  }
  if (shown != 0) throw Failed();
}

template <class T>
void expect_near(const std::vector<T>& got, const std::vector<T>& wanted, double relative, double absolute = 0) {
  HOLDS(got.size() == wanted.size());
  int shown = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double difference = std::fabs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    double allowed = std::max(absolute, relative * std::fabs(static_cast<double>(wanted[i])));
    if (difference <= allowed) continue;
    report("[%zu]: %s, not %s", i, show(got[i]).c_str(), show(wanted[i]).c_str());
    if (++shown == 8) break;
  }
  if (shown != 0) throw Failed();
}

/// Says that the case cannot be run here, and why; to be followed by a return.
inline void skip(const char* why) { std::printf("skipped: %s\n", why); }

struct Case {
  const char* name;
  void (*run)();
  bool has_context;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*run)(), bool has_context) { cases().push_back({name, run, has_context}); }
};

#define KERNELS_CASE(name, has_context)                                                 \
  static void case_##name();                                                            \
  static ::kernels::Registration registration_##name{#name, &case_##name, has_context}; \
  static void case_##name()
/// Defines a case. It runs in a context of its own, with which an error it leaves behind ends.
#define CASE(name) KERNELS_CASE(name, true)
/// Defines a case that begins before cuInit, if it is the only one.
#define CASE_WITHOUT_CONTEXT(name) KERNELS_CASE(name, false)

inline bool run_case(const Case& one) {
  failure_text().clear();
  CUcontext context = nullptr;
  try {
    if (one.has_context) {
      CUdevice device;
      OK(cuInit(0));
      OK(cuDeviceGet(&device, 0));
#if CUDA_VERSION >= 13000
      OK(cuCtxCreate(&context, nullptr, 0, device));
#else
      OK(cuCtxCreate(&context, 0, device));
#endif
    }
    one.run();
  } catch (const Failed&) {}
  if (context != nullptr) cuCtxDestroy(context);
  bool has_passed = failure_text().empty();
  std::printf("%s %s\n", has_passed ? "PASS" : "FAIL", one.name);
  if (!has_passed)
    std::printf("%s  (TEST_SEED=%llu)\n", failure_text().c_str(), static_cast<unsigned long long>(seed()));
  std::fflush(stdout);
  return has_passed;
}

inline int main_of_cases(int count, char** names) {
  if (count < 2) {
    for (const Case& one : cases()) std::printf("%s\n", one.name);
    return 0;
  }
  bool all_passed = true;
  for (int i = 1; i < count; ++i) {
    bool is_all = std::strcmp(names[i], "all") == 0, was_found = false;
    for (const Case& one : cases()) {
      if (!is_all && std::strcmp(names[i], one.name) != 0) continue;
      was_found = true;
      all_passed &= run_case(one);
    }
    if (!was_found) {
      std::printf("FAIL %s: no such case\n", names[i]);
      all_passed = false;
    }
  }
  return all_passed ? 0 : 1;
}

}  // namespace kernels

using kernels::block_size;
using kernels::blocks_for;
using kernels::Buffer;
using kernels::expect_near;
using kernels::expect_same;
using kernels::Kernels;
using kernels::random_values;
using kernels::report;
using kernels::skip;

int main(int count, char** names) { return kernels::main_of_cases(count, names); }

#endif  // __CUDACC__
