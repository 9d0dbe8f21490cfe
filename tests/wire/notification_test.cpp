// Asynchronous notifications: a session never goes over its budget, so that nobody is ever told.

#include <catch2/catch.hpp>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

TEST_CASE("callbacks for notifications are registered and taken away") {
  RemoteContext remote;
  int told = 0;
  const auto tell = [](CUasyncNotificationInfo*, void* data, CUasyncCallbackHandle) { ++*static_cast<int*>(data); };
  CUasyncCallbackHandle first = nullptr, second = nullptr;
  CHECK(cuDeviceRegisterAsyncNotification(9, tell, &told, &first) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceRegisterAsyncNotification(0, nullptr, &told, &first) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceRegisterAsyncNotification(0, tell, &told, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuDeviceRegisterAsyncNotification(0, tell, &told, &first) == CUDA_SUCCESS);
  REQUIRE(cuDeviceRegisterAsyncNotification(1, tell, &told, &second) == CUDA_SUCCESS);
  CHECK(first != second);
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, std::size_t{2} << 30) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(told == 0);
  CHECK(cuDeviceUnregisterAsyncNotification(0, second) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceUnregisterAsyncNotification(0, first) == CUDA_SUCCESS);
  CHECK(cuDeviceUnregisterAsyncNotification(0, first) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceUnregisterAsyncNotification(1, second) == CUDA_SUCCESS);
}

TEST_CASE("the profiler cannot be initialised, as with every driver since CUDA 12") {
  RemoteContext remote;
  CHECK(cuProfilerInitialize("a", "b", CU_OUT_CSV) == CUDA_ERROR_NOT_SUPPORTED);
}
