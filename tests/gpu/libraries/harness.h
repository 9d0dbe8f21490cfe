#pragma once

// What the programs over CUDA's libraries share. Each is one file with cases over one library; a case computes
// something and shows it. Run by itself and through fargpu, a case must print the same.
//
//   library_blas           lists the cases
//   library_blas CASE      runs one

#include <cuda_runtime.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace library {

/// Any library's status: 0 is success in all of them.
template <class Status>
void check(Status status, const char* call, int line) {
  if (static_cast<int>(status) == 0) return;
  std::printf("line %d: %s gives %d\n", line, call, static_cast<int>(status));
  std::exit(1);
}

inline void check_true(bool holds, const char* condition, int line) {
  if (holds) return;
  std::printf("line %d: %s does not hold\n", line, condition);
  std::exit(1);
}

#define OK(call) ::library::check((call), #call, __LINE__)
#define HOLDS(condition) ::library::check_true((condition), #condition, __LINE__)

/// Small whole numbers, with which sums of products are exact in any order.
template <class T>
std::vector<T> whole(size_t count, unsigned seed = 1) {
  std::vector<T> values;
  values.reserve(count);
  uint32_t state = seed * 2654435761u + 12345u;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(T(static_cast<float>(static_cast<int>((state >> 16) % 9) - 4)));
  }
  return values;
}

/// Numbers from -1 to 1.
template <class T>
std::vector<T> fractions(size_t count, unsigned seed = 1) {
  std::vector<T> values;
  values.reserve(count);
  uint32_t state = seed * 2654435761u + 54321u;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(T(static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f));
  }
  return values;
}

/// A matrix that is symmetric and positive definite.
template <class T>
std::vector<T> definite(int n, unsigned seed = 1) {
  std::vector<T> values = fractions<T>(static_cast<size_t>(n) * n, seed);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < i; ++j) values[i + static_cast<size_t>(j) * n] = values[j + static_cast<size_t>(i) * n];
  for (int i = 0; i < n; ++i) values[i + static_cast<size_t>(i) * n] += T(2.0f * static_cast<float>(n));
  return values;
}

/// Memory of the device for elements of one type.
template <class T>
class Memory {
 public:
  explicit Memory(size_t count) : count_(count) {
    OK(cudaMalloc(&data_, count * sizeof(T)));
    OK(cudaMemset(data_, 0, count * sizeof(T)));
    settle();
  }
  Memory(const std::vector<T>& values) : Memory(values.size()) { put(values); }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  T* data() const { return data_; }
  size_t count() const { return count_; }
  void put(const std::vector<T>& values) {
    OK(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    settle();
  }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    OK(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  // Work on streams that do not wait for the default one may come next.
  static void settle() { OK(cudaStreamSynchronize(nullptr)); }

  T* data_ = nullptr;
  size_t count_;
};

/// Prints what was computed: a fingerprint of all bits, and the first few values for people.
template <class T>
void show(const char* what, const std::vector<T>& values) {
  uint64_t hash = 1469598103934665603ull;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  std::printf("%s: %zu values, %016llx", what, values.size(), static_cast<unsigned long long>(hash));
  if constexpr (std::is_convertible_v<T, double>)
    for (size_t i = 0; i < values.size() && i < 4; ++i) std::printf(" %.9g", static_cast<double>(values[i]));
  std::printf("\n");
}

template <class T>
void show(const char* what, const Memory<T>& memory) {
  OK(cudaDeviceSynchronize());
  show(what, memory.get());
}

inline void show(const char* what, double value) { std::printf("%s: %.17g\n", what, value); }

template <class T>
void expect_near(const std::vector<T>& got, const std::vector<T>& wanted, double tolerance) {
  HOLDS(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double a = static_cast<double>(got[i]), b = static_cast<double>(wanted[i]);
    if (std::fabs(a - b) <= tolerance * (1 + std::fabs(b))) continue;
    std::printf("[%zu] is %.9g, not %.9g\n", i, a, b);
    std::exit(1);
  }
}

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

#define CASE(name)                                                         \
  static void case_##name();                                               \
  static ::library::Registration registration_##name{#name, &case_##name}; \
  static void case_##name()

inline int main_of_cases(int count, char** names) {
  if (count < 2) {
    for (const Case& one : cases()) std::printf("%s\n", one.name);
    return 0;
  }
  for (const Case& one : cases()) {
    if (std::strcmp(names[1], one.name) != 0) continue;
    one.run();
    const cudaError_t left = cudaDeviceSynchronize();
    std::printf("%s: %s\n", one.name, left == cudaSuccess ? "done" : cudaGetErrorName(left));
    return left == cudaSuccess ? 0 : 1;
  }
  std::printf("there is no case %s\n", names[1]);
  return 2;
}

}  // namespace library

using library::definite;
using library::expect_near;
using library::fractions;
using library::Memory;
using library::show;
using library::whole;

int main(int count, char** names) { return library::main_of_cases(count, names); }
