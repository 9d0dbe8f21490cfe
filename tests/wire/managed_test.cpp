// Managed memory: one address, contents that follow their users.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

constexpr std::size_t kib = 1024;

struct Managed : RemoteContext {
  explicit Managed(client::Config config = test::Remote::default_config()) : RemoteContext(std::move(config)) {
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill_kernel, module, "fill32") == CUDA_SUCCESS);
  }
  unsigned* allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    return reinterpret_cast<unsigned*>(address);
  }
  void fill(unsigned* words, unsigned count, unsigned value, CUstream stream = nullptr) {
    CUdeviceptr address = at(words);
    void* arguments[] = {&address, &count, &value};
    REQUIRE(cuLaunchKernel(fill_kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr) == CUDA_SUCCESS);
  }
  static CUdeviceptr at(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

  CUmodule module = nullptr;
  CUfunction fill_kernel = nullptr;
};

}  // namespace

TEST_CASE("the program and kernels see what the other wrote") {
  Managed m;
  const std::size_t words = GENERATE(std::size_t{100}, 300 * kib);
  unsigned* const data = m.allocate(words * 4);
  for (std::size_t i = 0; i < words; ++i) data[i] = static_cast<unsigned>(i);
  for (unsigned round = 1; round < 4; ++round) {
    m.fill(data + 10, 20, 1000 * round);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(data[9] == 9 + (round > 1 ? round - 1 : 0));
    CHECK(data[10] == 1000 * round);
    CHECK(data[29] == 1000 * round);
    CHECK(data[30] == 30);
    CHECK(data[words - 1] == words - 1);
    data[9] += 1;
  }
}

TEST_CASE("managed memory that was not used yet goes behind the work that makes it zero") {
  Managed m;
  test::Paused paused;
  unsigned* const data = m.allocate(300 * kib);
  auto freed = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(m.context);
    return bad != CUDA_SUCCESS ? bad : cuMemFree_v2(Managed::at(data));
  });
  CHECK(freed.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  paused.end();
  CHECK(freed.get() == CUDA_SUCCESS);
}

TEST_CASE("copies and memsets take and leave what is newest") {
  Managed m;
  unsigned* const data = m.allocate(256 * kib);
  CUdeviceptr device = 0;
  REQUIRE(cuMemAlloc_v2(&device, 64) == CUDA_SUCCESS);
  data[0] = 1;
  data[1] = 2;
  REQUIRE(cuMemcpyDtoD_v2(device, Managed::at(data), 8) == CUDA_SUCCESS);
  unsigned back[2] = {};
  REQUIRE(cuMemcpyDtoH_v2(back, device, 8) == CUDA_SUCCESS);
  CHECK(back[1] == 2);
  data[0] = 7;
  REQUIRE(cuMemcpy(Managed::at(back), Managed::at(data), 8) == CUDA_SUCCESS);
  CHECK(back[0] == 7);
  REQUIRE(cuMemsetD32_v2(Managed::at(data), 0xabcd, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(data[0] == 0xabcd);
  CHECK(data[1] == 2);
  back[0] = 99;
  REQUIRE(cuMemcpyHtoD_v2(Managed::at(data + 1), back, 4) == CUDA_SUCCESS);
  CHECK(data[1] == 99);
  CHECK(data[0] == 0xabcd);
}

TEST_CASE("what neither side has touched does not travel") {
  Managed m;
  unsigned* const data = m.allocate(8192 * kib);
  const auto sent = [&] { return m.driver->calls("cuMemcpyHtoDAsync_v2"); };
  data[512 * kib] = 5;
  m.fill(data, 4, 1);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(sent() == 1);
  const std::size_t fetched = m.driver->calls("cuMemcpyDtoHAsync_v2");
  m.fill(data, 4, 2);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(sent() == 1);
  CHECK(m.driver->calls("cuMemcpyDtoHAsync_v2") == fetched);
  CHECK(data[512 * kib] == 5);
  CHECK(data[3] == 2);
}

TEST_CASE("what is changed here and there after a wait for all streams travels in one piece") {
  Managed m;
  const std::size_t words = 16 * kib;  // one granule
  unsigned* const data = m.allocate(words * 4);
  CUstream own = nullptr, other = nullptr;
  REQUIRE(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  m.fill(data, static_cast<unsigned>(words), 3, own);
  m.fill(data, 1, 4, other);
  REQUIRE(cuStreamSynchronize(own) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
  const std::size_t before = m.driver->calls("cuMemcpyHtoDAsync_v2");
  for (std::size_t i = 0; i < words; i += 16) data[i] += 1;
  m.fill(data + 1, 1, 9, own);
  REQUIRE(cuStreamSynchronize(own) == CUDA_SUCCESS);
  CHECK(m.driver->calls("cuMemcpyHtoDAsync_v2") == before + 1);
  CHECK(data[0] == 5);
  CHECK(data[1] == 9);
  CHECK(data[16] == 4);
  CHECK(data[17] == 3);
}

TEST_CASE("reading in order costs ever fewer round trips") {
  Managed m;
  const std::size_t words = 1024 * kib;  // 64 granules
  unsigned* const data = m.allocate(words * 4);
  m.fill(data, static_cast<unsigned>(words), 3);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::size_t before = m.driver->calls("cuMemcpyDtoHAsync_v2");
  std::size_t right = 0;
  for (std::size_t i = 0; i < words; ++i) right += data[i] == 3;
  CHECK(right == words);
  CHECK(m.driver->calls("cuMemcpyDtoHAsync_v2") - before <= 8);
}

TEST_CASE("threads that touch the same pages at once") {
  Managed m;
  const std::size_t words = 256 * kib;
  unsigned* const data = m.allocate(words * 4);
  for (unsigned round = 0; round < 3; ++round) {
    m.fill(data, static_cast<unsigned>(words), round);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    std::vector<std::thread> threads;
    std::atomic<std::size_t> right{0};
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < words; i += 4) {
          right += data[i] == round;
          data[i] = 100 + t;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == words);
    m.fill(data, 1, 55);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(data[0] == 55);
    CHECK(data[5] == 101);
    CHECK(data[words - 1] == 103);
  }
}

TEST_CASE("what is touched while the GPU works is looked at again when it is done") {
  Managed m;
  unsigned* const data = m.allocate(64);
  data[0] = data[1] = data[2] = 1;
  m.fill(data, 1, 2);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  m.fill(data + 1, 1, 3);
  data[2] = 4;  // the program has not waited: the kernel may be running
  m.fill(data + 4, 1, 6);
  CHECK(data[2] == 4);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(data[0] == 2);
  CHECK(data[1] == 3);
  CHECK(data[2] == 4);
  CHECK(data[4] == 6);
  m.fill(data + 3, 1, 9);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(data[2] == 4);
  CHECK(data[3] == 9);
}

TEST_CASE("a host function may use managed memory") {
  Managed m;
  const CUstream stream = GENERATE_COPY(as<CUstream>{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD);
  unsigned* const data = m.allocate(64);
  data[0] = 1;
  m.fill(data, 1, 10, stream);
  REQUIRE(cuLaunchHostFunc(
              stream, [](void* words) { *static_cast<unsigned*>(words) += 5; }, data) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(data[0] == 15);
  m.fill(data + 1, 1, 2, stream);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(data[0] == 15);
}

TEST_CASE("a host function may use managed memory while its context waits for what is behind it") {
  Managed m;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  struct Behind {
    test::Gate gate;
    unsigned* data = nullptr;
  } behind;
  behind.data = m.allocate(64);
  behind.data[0] = 1;
  m.fill(behind.data, 1, 10, stream);
  REQUIRE(cuLaunchHostFunc(
              stream,
              [](void* argument) {
                auto& [gate, data] = *static_cast<Behind*>(argument);
                test::Gate::pass(&gate);
                data[0] += 5;
              },
              &behind) == CUDA_SUCCESS);
  behind.gate.wait_entered();
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuCtxWaitEvent(m.context, event) == CUDA_SUCCESS);
  m.hear_out();
  behind.gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(behind.data[0] == 15);
  CHECK(m.driver->calls("cuCtxWaitEvent") == 1);
}

TEST_CASE("a page comes also to a thread that is still to be told of an earlier failure") {
  Managed m;
  unsigned* const data = m.allocate(64);
  data[0] = 1;
  m.fill(data, 1, 10);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  client::Thread::deliver_error(client::Thread::current().id(), CUDA_ERROR_INVALID_VALUE, "a test");
  CHECK(data[0] == 10);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the program keeps what it saw of managed memory whose context has failed") {
  Managed m;
  const bool told = GENERATE(true, false);  // before the program looks
  unsigned* const data = m.allocate(512 * kib);
  unsigned* const others = m.allocate(64);
  data[0] = 1;
  m.fill(data + 1, 1, 10);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(data[1] == 10);
  others[0] = 3;
  CUfunction crash = nullptr;
  REQUIRE(cuModuleGetFunction(&crash, m.module, "crash") == CUDA_SUCCESS);
  const auto launch = [&] { return cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); };
  REQUIRE(launch() == CUDA_SUCCESS);
  if (told) REQUIRE(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(data[0] == 1);
  CHECK(data[1] == 10);
  CHECK(others[0] == 3);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  // What the program writes from here on stays here.
  others[1] = 4;
  data[64 * kib] = 5;
  CHECK(launch() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuMemsetD8_v2(m.at(data), 0, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(others[1] == 4);
  CHECK(data[64 * kib] == 5);
  CHECK(data[0] == 1);
}

TEST_CASE("the program keeps what it wrote to managed memory that cannot be sent, because the session is lost") {
  Managed m;
  unsigned* const data = m.allocate(1024 * kib);
  data[0] = 1;
  data[100 * kib] = 2;
  m.fill(data + 1, 1, 10);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  data[0] = 3;
  data[100 * kib] = 4;
  data[200 * kib] = 5;
  m.session().calls.events.lose("a test");
  CUdeviceptr address = Managed::at(data);
  unsigned count = 1, value = 1;
  void* arguments[] = {&address, &count, &value};
  CHECK(cuLaunchKernel(m.fill_kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr) ==
        CUDA_ERROR_DEVICE_UNAVAILABLE);
  for (int round = 0; round < 2; ++round) {
    CHECK(data[0] == 3);
    CHECK(data[100 * kib] == 4);
    CHECK(data[200 * kib] == 5);
    data[200 * kib] = 5;
  }
}

TEST_CASE("system calls use managed memory like any other") {
  Managed m;
  const std::size_t words = 100 * kib;
  unsigned* const data = m.allocate(words * 4);
  const auto whole = static_cast<ssize_t>(words * 4);
  std::FILE* const file = std::tmpfile();
  REQUIRE(file);
  for (unsigned round = 1; round < 3; ++round) {
    m.fill(data, words, round);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(::pwrite(fileno(file), data, words * 4, 0) == whole);  // what the GPU wrote
    m.fill(data, words, 77);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(::pread(fileno(file), data, words * 4, 0) == whole);  // over what it wrote
    std::size_t right = 0;
    for (std::size_t i = 0; i < words; ++i) right += data[i] == round;
    CHECK(right == words);
    CUdeviceptr copy = 0;
    REQUIRE(cuMemAlloc_v2(&copy, words * 4) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoD_v2(copy, Managed::at(data), words * 4) == CUDA_SUCCESS);
    unsigned last = 0;
    REQUIRE(cuMemcpyDtoH_v2(&last, copy + words * 4 - 4, 4) == CUDA_SUCCESS);
    CHECK(last == round);
  }
  std::fclose(file);
  int sockets[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  m.fill(data, 10, 5);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(::send(sockets[0], data, 40, 0) == 40);
  CHECK(::recv(sockets[1], data + 10, 40, 0) == 40);
  CHECK(data[19] == 5);
  CHECK(::write(sockets[0], reinterpret_cast<void*>(Managed::at(data) + (1ull << 32)), 4) == -1);
  CHECK(errno == EFAULT);
  ::close(sockets[0]);
  ::close(sockets[1]);
}

TEST_CASE("freed managed memory is gone, and its address holds nothing old") {
  Managed m;
  std::vector<unsigned*> blocks;
  for (int i = 0; i < 10; ++i) {
    blocks.push_back(m.allocate(5000));
    *blocks.back() = 77;
  }
  for (unsigned* const block : blocks) CHECK(cuMemFree_v2(Managed::at(block)) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(Managed::at(blocks[0])) == CUDA_ERROR_INVALID_VALUE);
  unsigned* const again = m.allocate(5000);
  CHECK(std::find(blocks.begin(), blocks.end(), again) != blocks.end());
  CHECK(*again == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    *const_cast<volatile unsigned*>(blocks[0] == again ? blocks[3] : blocks[0]) = 1;
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("managed memory begins with zeros for the GPU too, whatever was there before") {
  Managed m;
  constexpr std::size_t bytes = 4u << 20;
  CUdeviceptr device = 0, copy = 0;
  REQUIRE(cuMemAlloc_v2(&copy, bytes) == CUDA_SUCCESS);
  const auto all_zero = [&](const unsigned* words, std::size_t length) {
    std::vector<unsigned> seen(length / 4, 1);
    REQUIRE(cuMemcpyDtoD_v2(copy, Managed::at(words), length) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(seen.data(), copy, length) == CUDA_SUCCESS);
    return std::count(seen.begin(), seen.end(), 0u) == static_cast<std::ptrdiff_t>(seen.size());
  };
  unsigned* const first = m.allocate(5000);
  m.fill(first, 1250, 7);
  REQUIRE(cuMemFree_v2(Managed::at(first)) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&device, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(device, 7, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(device) == CUDA_SUCCESS);
  unsigned* const again = m.allocate(5000);
  CHECK(again == first);
  CHECK(all_zero(again, 5000));
  CHECK(all_zero(m.allocate(bytes), bytes));  // where memory of the device was
}

TEST_CASE("a fault that is not ours goes to the program's own handler") {
  struct sigaction mine {
  }, old{};
  mine.sa_handler = [](int) { ::_exit(42); };
  const pid_t child = ::fork();
  if (child == 0) {
    ::sigaction(SIGSEGV, &mine, &old);
    try {
      client::Config config = test::Remote::default_config();
      // UCX's thread does not come along into a child, and then the ends do not always meet.
      if (config.transport == client::Transport::rdma) config.transport = client::Config().transport;
      Managed m(config);
      *m.allocate(64) = 1;
      volatile std::uintptr_t nowhere = 16;
      *reinterpret_cast<volatile int*>(nowhere) = 1;
    } catch (...) {  // which is nothing for the other cases to go on from, here
    }
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 42);
}

TEST_CASE("pointer attributes and advice of managed memory") {
  Managed m;
  const CUdeviceptr data = Managed::at(m.allocate(16 * kib));
  int managed = 0;
  void* host = nullptr;
  CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, data) == CUDA_SUCCESS);
  CHECK(managed == 1);
  CHECK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, data + 8) == CUDA_SUCCESS);
  CHECK(Managed::at(host) == data + 8);

  const auto get = [&](CUmem_range_attribute attribute, std::size_t offset, std::size_t bytes) {
    int value = -99;
    REQUIRE(cuMemRangeGetAttribute(&value, sizeof(value), attribute, data + offset, bytes) == CUDA_SUCCESS);
    return value;
  };
  const CUmemLocation device{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 16 * kib) == CU_DEVICE_INVALID);
  REQUIRE(cuMemAdvise_v2(data, 8 * kib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device) == CUDA_SUCCESS);
  REQUIRE(cuMemAdvise_v2(data + 4 * kib, 8 * kib, CU_MEM_ADVISE_SET_READ_MOSTLY, device) == CUDA_SUCCESS);
  CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 8 * kib) == 0);
  CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 16 * kib) == CU_DEVICE_INVALID);
  CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 4 * kib, 8 * kib) == 1);
  CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, 16 * kib) == 0);
  REQUIRE(cuMemAdvise_v2(data, 16 * kib, CU_MEM_ADVISE_SET_ACCESSED_BY, device) == CUDA_SUCCESS);
  int accessed[2] = {};
  REQUIRE(cuMemRangeGetAttribute(accessed, sizeof(accessed), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, 16 * kib) ==
          CUDA_SUCCESS);
  CHECK(accessed[0] == 0);
  CHECK(accessed[1] == CU_DEVICE_INVALID);
  REQUIRE(cuMemPrefetchAsync_v2(data, 16 * kib, device, 0, nullptr) == CUDA_SUCCESS);
  CHECK(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 16 * kib) == 0);

  CUdeviceptr plain = 0;
  REQUIRE(cuMemAlloc_v2(&plain, 64) == CUDA_SUCCESS);
  CHECK(cuMemAdvise_v2(plain, 64, CU_MEM_ADVISE_SET_READ_MOSTLY, device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync_v2(data, 17 * kib, device, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocManaged(&plain, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocManaged(&plain, 64, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamAttachMemAsync(nullptr, data, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuStreamAttachMemAsync(nullptr, data + 8, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("ranges are prefetched and discarded in batches") {
  Managed m;
  const std::size_t bytes = 256 * kib;
  unsigned* const first = m.allocate(bytes);
  unsigned* const second = m.allocate(bytes);
  first[0] = 1;
  second[0] = 2;
  CUdeviceptr addresses[] = {Managed::at(first), Managed::at(second)};
  std::size_t sizes[] = {bytes, bytes};
  CUmemLocation to_device{};
  to_device.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemLocation locations[] = {to_device, to_device};
  std::size_t starts[] = {0, 1};
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 2, locations, starts, 2, 0, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(first[0] == 1);
  CHECK(second[0] == 2);
  CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 2, locations, starts, 3, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 2, locations, starts, 2, 1, stream) == CUDA_ERROR_INVALID_VALUE);
  std::size_t late[] = {1, 1};
  CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 2, locations, late, 2, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchBatchAsync(nullptr, sizes, 2, locations, starts, 2, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemDiscardBatchAsync(addresses, sizes, 2, 0, stream) == CUDA_SUCCESS);
  CHECK(cuMemDiscardBatchAsync(addresses, sizes, 2, 1, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemDiscardAndPrefetchBatchAsync(addresses, sizes, 2, locations, starts, 1, 0, stream) == CUDA_SUCCESS);
  CUdeviceptr foreign[] = {0x1234000};
  CHECK(cuMemDiscardBatchAsync(foreign, sizes, 1, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  second[0] = 5;  // what was discarded is written anew
  CHECK(second[0] == 5);
}

TEST_CASE("memory is opened to the devices that work is done on, whichever came first") {
  Managed m;
  unsigned* const words = m.allocate(64 * kib);
  const std::size_t before = m.driver->calls("cuMemSetAccess");
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  CHECK(m.driver->calls("cuMemSetAccess") > before);
  const std::vector<std::uint64_t> last = m.driver->last_arguments("cuMemSetAccess");
  REQUIRE(last.size() >= 2);
  CHECK(Managed::at(words) >= last[0]);
  CHECK(Managed::at(words) < last[0] + last[1]);
  // What the host writes is there before another device works on it, and comes back.
  words[3] = 9;
  REQUIRE(cuCtxPushCurrent_v2(other) == CUDA_SUCCESS);
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&m.fill_kernel, module, "fill32") == CUDA_SUCCESS);
  m.fill(words, 2, 4);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(words[1] == 4);
  CHECK(words[3] == 9);
  REQUIRE(cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
}
