// cuGetProcAddress: which function a name means, at a version, with or without per-thread default streams.

#include "client/tables/proc_table.h"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <charconv>
#include <fstream>
#include <sstream>

#include "symbols.h"

using namespace fargpu;
using namespace fargpu::client;

namespace {

constexpr CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
constexpr CUdriverProcAddressQueryResult missing = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
constexpr CUdriverProcAddressQueryResult too_new = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
constexpr cuuint64_t per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

// The exported functions are part of this program.
void* exported(const std::string& name) { return ::dlsym(RTLD_DEFAULT, name.c_str()); }

struct Answer {
  CUresult result;
  void* function;
  CUdriverProcAddressQueryResult status;
};
void* const untouched = reinterpret_cast<void*>(std::uintptr_t{0xABCDE});
constexpr auto untouched_status = static_cast<CUdriverProcAddressQueryResult>(77);

Answer ask(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
  Answer answer{CUDA_SUCCESS, untouched, untouched_status};
  answer.result = cuGetProcAddress_v2(name, &answer.function, version, flags, &answer.status);
  return answer;
}

void check_is(const char* name, int version, cuuint64_t flags, const char* function) {
  INFO(name << " at " << version << " with flags " << flags << " should be " << function);
  const Answer answer = ask(name, version, flags);
  CHECK(answer.result == CUDA_SUCCESS);
  CHECK(answer.status == found);
  REQUIRE(exported(function));
  CHECK(answer.function == exported(function));
}

void check_none(const char* name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult status) {
  INFO(name << " at " << version << " with flags " << flags);
  const Answer answer = ask(name, version, flags);
  CHECK(answer.result == CUDA_SUCCESS);
  CHECK(answer.function == nullptr);
  CHECK(answer.status == status);
}

}  // namespace

TEST_CASE("every exported function is in the table once, in the table's order") {
  const auto entries = proc_entries();
  CHECK(entries.size() == symbol_count);
  CHECK(std::is_sorted(entries.begin(), entries.end(), [](const ProcEntry& a, const ProcEntry& b) {
    return std::tuple(a.name, a.per_thread, a.since) < std::tuple(b.name, b.per_thread, b.since);
  }));
  std::vector<void*> functions;
  for (const ProcEntry& entry : entries) functions.push_back(entry.function);
  std::sort(functions.begin(), functions.end());
  CHECK(std::adjacent_find(functions.begin(), functions.end()) == functions.end());
  for (unsigned i = 0; i < symbol_count; ++i) {
    void* const function = exported(std::string(facts_of(static_cast<Symbol>(i)).name));
    if (!std::binary_search(functions.begin(), functions.end(), function)) FAIL(facts_of(static_cast<Symbol>(i)).name);
  }
}

TEST_CASE("what the runtime and PyTorch ask for is answered with the function meant") {
  std::ifstream file(FARGPU_TEST_DATA "/proc_requests.txt");
  REQUIRE(file);
  unsigned requests = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (std::string word; words >> word; ++requests) {
      int version = 0;
      const char* const end = std::from_chars(word.data(), word.data() + word.size(), version).ptr;
      const std::string rest = word.substr(static_cast<std::size_t>(end - word.data()));
      const bool threads = rest.starts_with('p');
      const std::string suffix = rest.substr(rest.find(':') + 1);
      check_is(name.c_str(), version, threads ? per_thread : 0, (name + suffix).c_str());
    }
  }
  CHECK(requests == 491);
}

TEST_CASE("names that there are not are missing, without an error") {
  check_none("", 0, 0, missing);
  check_none("", 13000, 0, missing);
  check_none("cuNoSuchFunction", 13000, 0, missing);
  check_none("cuMemcpyHtoD ", 13000, 0, missing);
  check_none("CUMEMCPY", 13000, 0, missing);
  check_none("cuCtxGetDevice_v2", 13000, 0, missing);  // no suffixes in names
  check_none("cuMemcpy_ptds", 13000, per_thread, missing);
  void* function = untouched;
  CHECK(cuGetProcAddress_v2("cuNoSuchFunction", &function, 13000, 0, nullptr) == CUDA_SUCCESS);
  CHECK(function == nullptr);
}

TEST_CASE("questions that make no sense are errors and change nothing") {
  for (const Answer& answer : {ask("cuInit", 14000), ask("cuInit", 13001), ask("cuInit", 13000, 4),
                               ask("cuInit", 13000, ~0ull), ask(nullptr, 13000)}) {
    CHECK(answer.result == CUDA_ERROR_INVALID_VALUE);
    CHECK(answer.function == untouched);
    CHECK(answer.status == untouched_status);
  }
  CUdriverProcAddressQueryResult status = untouched_status;
  CHECK(cuGetProcAddress_v2("cuInit", nullptr, 13000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
  CHECK(status == untouched_status);
}

TEST_CASE("a name newer than the version asked for is there, but not for that version") {
  check_none("cuMemcpyHtoD", 1999, 0, too_new);
  check_none("cuLaunchKernelEx", 11050, 0, too_new);
  check_none("cuMemGetMemPool", 12090, 0, too_new);
  check_is("cuLaunchKernelEx", 11060, 0, "cuLaunchKernelEx");
}

TEST_CASE("the newest variant that is old enough is meant") {
  check_is("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate");
  for (const int version : {11000, 11040, 12000, 12080, 13000})
    check_is("cuGraphInstantiate", version, 0, "cuGraphInstantiate_v2");
  for (const int version : {2000, 7000, 12000, 12090}) {
    check_is("cuCtxGetDevice", version, 0, "cuCtxGetDevice");
    check_is("cuCtxSynchronize", version, 0, "cuCtxSynchronize");
  }
  check_is("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2");
  check_is("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2");
  check_is("cuGetProcAddress", 11030, 0, "cuGetProcAddress");
  check_is("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
  check_is("cuStreamWaitValue32", 8000, 0, "cuStreamWaitValue32");
  check_is("cuStreamWaitValue32", 12000, 0, "cuStreamWaitValue32_v2");
  check_is("cuEventElapsedTime", 12070, 0, "cuEventElapsedTime");
  check_is("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2");
  check_is("cuDeviceGetUuid", 9020, 0, "cuDeviceGetUuid");
  check_is("cuDeviceGetUuid", 12000, 0, "cuDeviceGetUuid_v2");
  check_is("cuDevicePrimaryCtxRelease", 7000, 0, "cuDevicePrimaryCtxRelease");
  check_is("cuDevicePrimaryCtxRelease", 12000, 0, "cuDevicePrimaryCtxRelease_v2");
  check_is("cuCtxCreate", 3010, 0, "cuCtxCreate");
  check_is("cuCtxCreate", 3020, 0, "cuCtxCreate_v2");
  check_is("cuCtxCreate", 11040, 0, "cuCtxCreate_v3");
  check_is("cuCtxCreate", 12050, 0, "cuCtxCreate_v4");
}

TEST_CASE("with per-thread default streams their own variants are meant, where there are any") {
  check_is("cuMemcpyHtoD", 7000, per_thread, "cuMemcpyHtoD_v2_ptds");
  check_is("cuLaunchKernel", 13000, per_thread, "cuLaunchKernel_ptsz");
  check_is("cuStreamWaitValue32", 8000, per_thread, "cuStreamWaitValue32_ptsz");
  check_is("cuStreamWaitValue32", 13000, per_thread, "cuStreamWaitValue32_v2_ptsz");
  check_is("cuMemAlloc", 13000, per_thread, "cuMemAlloc_v2");  // has none
  check_is("cuInit", 2000, per_thread, "cuInit");
  check_is("cuMemcpyHtoD", 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, "cuMemcpyHtoD_v2");
  // Below the version that introduced them there is nothing, not even the ordinary variant.
  check_none("cuMemcpyHtoD", 3020, per_thread, too_new);
  check_none("cuLaunchKernel", 4000, per_thread, too_new);
  check_none("cuMemcpy", 4000, per_thread, too_new);
}

TEST_CASE("the older question answers missing names with an error") {
  void* function = untouched;
  CHECK(cuGetProcAddress("cuCtxGetDevice", &function, 11030, 0) == CUDA_SUCCESS);
  CHECK(function == exported("cuCtxGetDevice"));
  function = untouched;
  CHECK(cuGetProcAddress("cuNoSuchFunction", &function, 11030, 0) == CUDA_ERROR_NOT_FOUND);
  CHECK(cuGetProcAddress("cuLaunchKernelEx", &function, 11050, 0) == CUDA_ERROR_NOT_FOUND);
  CHECK(cuGetProcAddress("cuInit", &function, 14000, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGetProcAddress(nullptr, &function, 11030, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(function == untouched);
}
