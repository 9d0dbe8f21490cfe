// Memory and events shared between processes. The other process is the test itself, by way of the exchange that stands
// for the broker.

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <future>
#include <vector>

#include "client/memory/shared_handle.h"
#include "fixture.h"

using namespace fargpu;
using client::SharedHandle;
using test::RemoteContext;

namespace {

constexpr std::size_t mib = 1u << 20;

template <class Handle>
Handle handle_of(const SharedHandle& shared) {
  Handle handle;
  const auto bytes = shared.encode();
  std::memcpy(&handle, bytes.data(), bytes.size());
  return handle;
}

/// Memory of a session of another process, shared by a key.
struct Foreign {
  explicit Foreign(test::Remote& remote, std::size_t bytes = 2 * mib, int device = 0) {
    key.fill(std::byte{0x5a});
    auto& driver = remote.driver.table();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemGenericAllocationHandle memory{};
    REQUIRE(driver.cuMemCreate(&memory, bytes, &properties, 0) == CUDA_SUCCESS);
    int file = -1;
    REQUIRE(driver.cuMemExportToShareableHandle(&file, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS);
    REQUIRE(remote.shares.share(key, {device, bytes, server::Descriptor(file), {}}));
    shared = {SharedHandle::Kind::memory, key, bytes, 4096, 1000};
  }
  CUipcMemHandle handle() const { return handle_of<CUipcMemHandle>(shared); }
  ShareKey key{};
  SharedHandle shared;
};

CUmemGenericAllocationHandle create(std::size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle{};
  REQUIRE(cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
  return handle;
}

CUdeviceptr map(CUmemGenericAllocationHandle handle, std::size_t bytes) {
  CUdeviceptr address = 0;
  REQUIRE(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(address, bytes, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemsetD32_v2(address, 0, 1) == CUDA_ERROR_INVALID_VALUE);  // nothing may use it yet
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  REQUIRE(cuMemSetAccess(address, bytes, &access, 1) == CUDA_SUCCESS);
  return address;
}

}  // namespace

TEST_CASE("memory of cuMemAlloc has handles for other processes") {
  RemoteContext remote;
  CUdeviceptr small = 0, large = 0, managed = 0, pooled = 0;
  REQUIRE(cuMemAlloc_v2(&small, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&large, 5 * mib) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&pooled, 4096, nullptr) == CUDA_SUCCESS);
  int capable = -1;
  CHECK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, small) == CUDA_SUCCESS);
  CHECK(capable == 1);
  CHECK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled) == CUDA_SUCCESS);
  CHECK(capable == 0);
  CUipcMemHandle first{}, again{}, other{};
  REQUIRE(cuIpcGetMemHandle(&first, small) == CUDA_SUCCESS);
  REQUIRE(cuIpcGetMemHandle(&again, small + 500) == CUDA_SUCCESS);
  CHECK(std::memcmp(&first, &again, sizeof(first)) == 0);
  REQUIRE(cuIpcGetMemHandle(&other, large) == CUDA_SUCCESS);
  CHECK(std::memcmp(&first, &other, sizeof(first)) != 0);
  CHECK(remote.shares.count() == 2);
  CHECK(cuIpcGetMemHandle(nullptr, small) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(&other, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(&other, managed) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcGetMemHandle(&other, pooled) == CUDA_ERROR_INVALID_VALUE);
  // Not in the process that has it anyway.
  CUdeviceptr opened = 0;
  CHECK(cuIpcOpenMemHandle_v2(&opened, first, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("the first handle waits for copies that were taken for done, and for no kernel") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const bool copies = GENERATE(false, true);
  test::Paused paused;
  const std::vector<std::byte> bytes(4096, std::byte{7});
  if (copies) REQUIRE(cuMemcpyHtoD_v2(memory, bytes.data(), bytes.size()) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 5, 16, nullptr) == CUDA_SUCCESS);  // as a kernel that waits for the program
  auto shared = std::async(std::launch::async, [&] {
    CUipcMemHandle handle{};
    const CUresult set = cuCtxSetCurrent(remote.context);
    return set == CUDA_SUCCESS ? cuIpcGetMemHandle(&handle, memory) : set;
  });
  if (copies) CHECK(shared.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  else CHECK(shared.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  paused.end();
  CHECK(shared.get() == CUDA_SUCCESS);
}

TEST_CASE("peers reach memory of another process like one's own") {
  RemoteContext remote;
  const Foreign foreign(remote);
  const auto accesses = [&, before = remote.driver->calls("cuMemSetAccess")] {
    return remote.driver->calls("cuMemSetAccess") - before;
  };
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxEnablePeerAccess(remote.context, 0) == CUDA_SUCCESS);
  CHECK(accesses() == 0);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  CUdeviceptr opened = 0;
  REQUIRE(cuIpcOpenMemHandle_v2(&opened, foreign.handle(), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
  CHECK(accesses() == 2);  // its own device, and the peer
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxDisablePeerAccess(remote.context) == CUDA_SUCCESS);
  CHECK(accesses() == 3);
  REQUIRE(cuCtxEnablePeerAccess(remote.context, 0) == CUDA_SUCCESS);
  CHECK(accesses() == 4);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  CHECK(cuIpcCloseMemHandle(opened) == CUDA_SUCCESS);
}

TEST_CASE("memory of another process is used like one's own, and closed as often as opened") {
  RemoteContext remote;
  const Foreign foreign(remote);
  const std::uint64_t before = remote.driver->memory_bytes();
  CUdeviceptr opened = 0, again = 0, base = 0;
  REQUIRE(cuIpcOpenMemHandle_v2(&opened, foreign.handle(), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
  REQUIRE(cuIpcOpenMemHandle_v2(&again, foreign.handle(), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
  CHECK(opened == again);
  std::size_t bytes = 0;
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, opened + 10) == CUDA_SUCCESS);
  CHECK(base == opened);
  CHECK(bytes == 1000);
  unsigned word = 0;
  REQUIRE(cuMemsetD32_v2(opened, 77, 250) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&word, opened + 996, 4) == CUDA_SUCCESS);
  CHECK(word == 77);
  CHECK(cuMemFree_v2(opened) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcCloseMemHandle(opened + 4) == CUDA_ERROR_INVALID_VALUE);
  // Another allocation in the same piece of memory.
  auto neighbour = foreign.shared;
  neighbour.offset = 8192;
  CUdeviceptr next = 0;
  REQUIRE(cuIpcOpenMemHandle_v2(&next, handle_of<CUipcMemHandle>(neighbour), 0) == CUDA_SUCCESS);
  CHECK(next == opened + 4096);
  CHECK(cuIpcCloseMemHandle(opened) == CUDA_SUCCESS);
  CHECK(cuIpcCloseMemHandle(opened) == CUDA_SUCCESS);
  CHECK(cuIpcCloseMemHandle(opened) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH_v2(&word, opened, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH_v2(&word, next, 4) == CUDA_SUCCESS);
  CHECK(cuIpcCloseMemHandle(next) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(remote.driver->memory_bytes() == before);
}

TEST_CASE("a wait for the last use of opened memory holds up no other thread that shares") {
  RemoteContext remote;
  const Foreign foreign(remote);
  CUdeviceptr own = 0, opened = 0, again = 0;
  CUipcMemHandle handle{};
  REQUIRE(cuMemAlloc_v2(&own, 4096) == CUDA_SUCCESS);
  REQUIRE(cuIpcGetMemHandle(&handle, own) == CUDA_SUCCESS);
  REQUIRE(cuIpcOpenMemHandle_v2(&opened, foreign.handle(), 0) == CUDA_SUCCESS);
  const auto elsewhere = [&](auto call) {
    return std::async(std::launch::async, [&remote, call] {
      const CUresult bad = cuCtxSetCurrent(remote.context);
      return bad == CUDA_SUCCESS ? call() : bad;
    });
  };
  test::Paused paused;
  REQUIRE(cuMemsetD32Async(opened, 7, 10, nullptr) == CUDA_SUCCESS);
  auto closed = elsewhere([&] { return cuIpcCloseMemHandle(opened); });
  CHECK(closed.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  auto shared = elsewhere([&] { return cuIpcGetMemHandle(&handle, own); });
  CHECK(shared.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  auto reopened = elsewhere([&] { return cuIpcOpenMemHandle_v2(&again, foreign.handle(), 0); });
  CHECK(reopened.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  paused.end();
  for (auto* const call : {&closed, &shared, &reopened}) CHECK(call->get() == CUDA_SUCCESS);
  // What was opened again meanwhile stays.
  unsigned word = 0;
  REQUIRE(cuMemsetD32_v2(again, 8, 10) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&word, again + 36, 4) == CUDA_SUCCESS);
  CHECK(word == 8);
  CHECK(remote.shares.lent(foreign.key) == 1);
  CHECK(cuIpcCloseMemHandle(again) == CUDA_SUCCESS);
  std::size_t free = 0, total = 0;
  CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);  // behind what the worker was told
  CHECK(remote.shares.lent(foreign.key) == 0);
}

TEST_CASE("as often as memory of another session was fetched it is let go, whatever became of it") {
  RemoteContext remote;
  const Foreign foreign(remote);
  CUdeviceptr opened = 0;
  auto wrong = foreign.shared;
  wrong.bytes *= 2;
  CHECK(cuIpcOpenMemHandle_v2(&opened, handle_of<CUipcMemHandle>(wrong), 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.shares.lent(foreign.key) == 0);
  REQUIRE(cuIpcOpenMemHandle_v2(&opened, foreign.handle(), 0) == CUDA_SUCCESS);
  CHECK(remote.shares.lent(foreign.key) == 1);
  // Shared on under another key it is the same memory.
  CUipcMemHandle on{};
  const CUresult got = cuIpcGetMemHandle(&on, opened);
  INFO(got);
  CHECK(remote.shares.shared_on(foreign.key) == (got == CUDA_SUCCESS ? 1 : 0));
  REQUIRE(cuIpcCloseMemHandle(opened) == CUDA_SUCCESS);
  const auto memory = create(2 * mib);  // which waits for the worker
  CHECK(remote.shares.lent(foreign.key) == 0);
  // Its own, imported again.
  int file = -1;
  REQUIRE(cuMemExportToShareableHandle(&file, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported{};
  REQUIRE(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
  CHECK(remote.shares.count() == 2);
  int again = -1;
  REQUIRE(cuMemExportToShareableHandle(&again, imported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  CHECK(cuMemRelease(memory) == CUDA_SUCCESS);
  CHECK(cuMemRelease(imported) == CUDA_SUCCESS);
  CHECK(remote.shares.count() == 1);
  ::close(file);
  ::close(again);
}

TEST_CASE("handles that nobody gave open nothing") {
  RemoteContext remote;
  const Foreign foreign(remote);
  CUdeviceptr opened = 0;
  const auto opens = [&](const SharedHandle& shared) {
    return cuIpcOpenMemHandle_v2(&opened, handle_of<CUipcMemHandle>(shared), 1);
  };
  CHECK(cuIpcOpenMemHandle_v2(&opened, CUipcMemHandle{}, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcOpenMemHandle_v2(nullptr, foreign.handle(), 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcOpenMemHandle_v2(&opened, foreign.handle(), 6) == CUDA_ERROR_INVALID_VALUE);
  auto unknown = foreign.shared;
  unknown.key[3] ^= std::byte{1};
  CHECK(opens(unknown) == CUDA_ERROR_INVALID_VALUE);
  auto longer = foreign.shared;
  longer.bytes *= 2;
  CHECK(opens(longer) == CUDA_ERROR_INVALID_VALUE);
  auto outside = foreign.shared;
  outside.offset = outside.bytes - 4;
  CHECK(opens(outside) == CUDA_ERROR_INVALID_VALUE);
  auto empty = foreign.shared;
  empty.length = 0;
  CHECK(opens(empty) == CUDA_ERROR_INVALID_VALUE);
  auto event = foreign.shared;
  event.kind = SharedHandle::Kind::event;
  CHECK(opens(event) == CUDA_ERROR_INVALID_VALUE);
  // What is there can still be opened, and overlaps are told from it.
  REQUIRE(opens(foreign.shared) == CUDA_SUCCESS);
  auto overlapping = foreign.shared;
  overlapping.offset += 4;
  CHECK(opens(overlapping) == CUDA_ERROR_INVALID_VALUE);
  longer.offset = longer.bytes - longer.length;
  CHECK(opens(longer) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcCloseMemHandle(opened) == CUDA_SUCCESS);
}

TEST_CASE("memory is no longer shared when its session gives it up") {
  RemoteContext remote;
  const auto memory = create(2 * mib);
  int file = -1;
  REQUIRE(cuMemExportToShareableHandle(&file, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  const CUdeviceptr address = map(memory, 2 * mib);
  CHECK(remote.shares.count() == 1);
  const auto shared = [&] {
    std::size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);  // the worker is past what was sent before
    return remote.shares.count();
  };
  REQUIRE(cuMemRelease(memory) == CUDA_SUCCESS);
  CHECK(shared() == 1);  // it is mapped yet
  REQUIRE(cuMemUnmap(address, 2 * mib) == CUDA_SUCCESS);
  CHECK(shared() == 0);
  CUmemGenericAllocationHandle imported{};
  CHECK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_ERROR_INVALID_VALUE);
  ::close(file);
}

TEST_CASE("allocations go from hand to hand as files") {
  RemoteContext remote;
  const auto memory = create(4 * mib);
  int file = -1, again = -1;
  REQUIRE(cuMemExportToShareableHandle(&file, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemExportToShareableHandle(&again, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  CHECK(file != again);  // each is the caller's to close
  CHECK(remote.shares.count() == 1);
  ::close(again);
  const auto import_of = [](int descriptor, CUmemGenericAllocationHandle& handle) {
    return cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  };
  CUmemGenericAllocationHandle imported{};
  REQUIRE(import_of(file, imported) == CUDA_SUCCESS);
  const CUdeviceptr first = map(memory, 4 * mib), second = map(imported, 4 * mib);
  unsigned word = 0;
  REQUIRE(cuMemsetD32_v2(first, 5, 4) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&word, second, 4) == CUDA_SUCCESS);
  CHECK(word == 5);

  CHECK(cuMemExportToShareableHandle(nullptr, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemExportToShareableHandle(&again, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemExportToShareableHandle(&again, 12345, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
  CHECK(cuMemExportToShareableHandle(&again, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0) == CUDA_ERROR_NOT_SUPPORTED);
  const int other = ::memfd_create("something-else", MFD_CLOEXEC);
  CHECK(import_of(other, imported) == CUDA_ERROR_UNKNOWN);
  CHECK(import_of(-1, imported) == CUDA_ERROR_UNKNOWN);
  ::close(other);
  ::close(file);
}

// PyTorch asks for a fabric's handle first, and takes descriptors where that is refused.
TEST_CASE("memory is made for no handle that it cannot be exported by") {
  RemoteContext remote;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemGenericAllocationHandle memory{};
  for (const int types :
       std::initializer_list<int>{CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_WIN32,
                                  CU_MEM_HANDLE_TYPE_FABRIC | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) {
    properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    CHECK(cuMemCreate(&memory, 4 << 20, &properties, 0) == CUDA_ERROR_NOT_SUPPORTED);
  }
}

TEST_CASE("what is done with a shared event has been done when the call returns") {
  RemoteContext remote;
  CUevent event = nullptr, opened = nullptr, plain = nullptr;
  CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  CUipcEventHandle handle{};
  CHECK(cuIpcGetEventHandle(&handle, plain) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuIpcGetEventHandle(&handle, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuIpcGetEventHandle(nullptr, event) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuIpcGetEventHandle(&handle, event) == CUDA_SUCCESS);
  CHECK(remote.shares.count() == 1);

  const auto records = [&] { return remote.driver->calls("cuEventRecordWithFlags"); };
  const auto waits = [&] { return remote.driver->calls("cuStreamWaitEvent"); };
  const std::size_t recorded = records(), waited = waits();
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(records() == recorded + 1);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);  // though this process has seen it happen
  CHECK(waits() == waited + 1);

  REQUIRE(cuIpcOpenEventHandle(&opened, handle) == CUDA_SUCCESS);
  CHECK(opened != event);
  CHECK(cuEventRecord(opened, stream) == CUDA_SUCCESS);
  CHECK(cuEventQuery(opened) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(opened) == CUDA_SUCCESS);
  CHECK(cuEventDestroy_v2(opened) == CUDA_SUCCESS);
  CHECK(cuIpcOpenEventHandle(&opened, CUipcEventHandle{}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuIpcOpenEventHandle(nullptr, handle) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(remote.shares.count() == 0);
  CHECK(cuIpcOpenEventHandle(&opened, handle) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("pools go from hand to hand as files, and what lies in them by words of its own") {
  RemoteContext remote;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr, closed = nullptr, imported = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  REQUIRE(cuMemPoolCreate(&closed, &properties) == CUDA_SUCCESS);
  int file = -1;
  CHECK(cuMemPoolExportToShareableHandle(&file, closed, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
        CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  void* const os_handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  REQUIRE(cuMemPoolImportFromShareableHandle(&imported, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
          CUDA_SUCCESS);
  CUmemGenericAllocationHandle allocation{};
  CHECK(cuMemImportFromShareableHandle(&allocation, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
        CUDA_ERROR_UNKNOWN);
  ::close(file);
  CUdeviceptr address = 0;
  CHECK(cuMemAllocFromPoolAsync(&address, 64, imported, nullptr) == CUDA_ERROR_INVALID_VALUE);

  REQUIRE(cuMemAllocFromPoolAsync(&address, 3000, pool, nullptr) == CUDA_SUCCESS);
  CUmemPoolPtrExportData data{};
  REQUIRE(cuMemPoolExportPointer(&data, address) == CUDA_SUCCESS);
  CUipcMemHandle handle{};
  CHECK(cuIpcGetMemHandle(&handle, address) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAllocFromPoolAsync(&address, 3000, closed, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemPoolExportPointer(&data, address) == CUDA_ERROR_INVALID_VALUE);

  const Foreign foreign(remote, 2 * mib, 1);
  data = handle_of<CUmemPoolPtrExportData>(foreign.shared);
  CUdeviceptr opened = 0;
  CHECK(cuMemPoolImportPointer(&opened, pool, &data) == CUDA_ERROR_INVALID_VALUE);  // one's own
  REQUIRE(cuMemPoolImportPointer(&opened, imported, &data) == CUDA_SUCCESS);
  CUmemoryPool of = nullptr;
  CHECK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, opened) == CUDA_SUCCESS);
  CHECK(of == imported);
  unsigned word = 0;
  REQUIRE(cuMemsetD32_v2(opened, 9, 10) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&word, opened + 36, 4) == CUDA_SUCCESS);
  CHECK(word == 9);
  CHECK(cuIpcCloseMemHandle(opened) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(opened, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(opened) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory that a pool imported outlasts the context, and other opened memory does not") {
  RemoteContext remote;
  const Foreign foreign(remote);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool pool = nullptr, imported = nullptr;
  int file = -1;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  ::close(file);
  CUcontext made = nullptr;
  REQUIRE(cuCtxCreate_v4(&made, nullptr, 0, 0) == CUDA_SUCCESS);
  auto data = handle_of<CUmemPoolPtrExportData>(foreign.shared);
  CUdeviceptr of_pool = 0, opened = 0;
  REQUIRE(cuMemPoolImportPointer(&of_pool, imported, &data) == CUDA_SUCCESS);
  auto neighbour = foreign.shared;
  neighbour.offset = 8192;
  REQUIRE(cuIpcOpenMemHandle_v2(&opened, handle_of<CUipcMemHandle>(neighbour), 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32_v2(of_pool, 9, 10) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(made) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  unsigned word = 0;
  CHECK(cuMemcpyDtoH_v2(&word, opened, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemcpyDtoH_v2(&word, of_pool + 36, 4) == CUDA_SUCCESS);
  CHECK(word == 9);
  test::Paused paused;
  REQUIRE(cuMemsetD32Async(of_pool, 7, 10, nullptr) == CUDA_SUCCESS);
  auto freed = std::async(std::launch::async, [&] {
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    return cuMemFree_v2(of_pool);
  });
  CHECK(freed.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  paused.end();
  CHECK(freed.get() == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH_v2(&word, of_pool, 4) == CUDA_ERROR_INVALID_VALUE);
  std::size_t free = 0, total = 0;
  CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);  // behind what the worker was told
  CHECK(remote.shares.lent(foreign.key) == 0);
}

TEST_CASE("memory that was shared is used for nothing else") {
  RemoteContext remote;
  const std::size_t bytes = GENERATE(std::size_t{1000}, 5 * mib);
  CUdeviceptr first = 0, second = 0, before = 0;
  REQUIRE(cuMemAlloc_v2(&before, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&first, bytes) == CUDA_SUCCESS);
  CUipcMemHandle handle{};
  REQUIRE(cuIpcGetMemHandle(&handle, first) == CUDA_SUCCESS);
  const auto shared =
      SharedHandle::decode(std::as_bytes(std::span<const char, 64>(handle.reserved)), SharedHandle::Kind::memory);
  REQUIRE(shared);
  const CUdeviceptr piece = first - shared->offset;
  REQUIRE(cuMemAlloc_v2(&second, bytes) == CUDA_SUCCESS);  // while it is in use
  CHECK((second < piece || second >= piece + shared->bytes));
  REQUIRE(cuMemFree_v2(first) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(before) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(second) == CUDA_SUCCESS);  // the next call that may send
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&second, bytes) == CUDA_SUCCESS);
  unsigned word = 0;
  REQUIRE(cuMemcpyDtoH_v2(&word, second, 4) == CUDA_SUCCESS);  // and one that waits for the worker
  CHECK(remote.shares.count() == 0);
}
