// Copies that the program takes for done: a question whether they are made is about those of that moment.

#include <catch2/catch.hpp>
#include <set>

#include "server/worker/order/taken_copies.h"

using namespace fargpu;
using namespace fargpu::server;

namespace {

std::set<CUevent> fired, alive;
int created;

/// A driver with events only, which happen when the test says so.
DriverTable events_only() {
  fired.clear();
  alive.clear();
  created = 0;
  DriverTable driver;
  driver.cuEventCreate = [](CUevent* event, unsigned) {
    alive.insert(*event = reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(++created)));
    return CUDA_SUCCESS;
  };
  driver.cuEventDestroy_v2 = [](CUevent event) {
    return alive.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  };
  driver.cuEventRecord = [](CUevent event, CUstream) {
    fired.erase(event);
    return CUDA_SUCCESS;
  };
  driver.cuEventQuery = [](CUevent event) { return fired.contains(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; };
  driver.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return CUDA_SUCCESS; };
  return driver;
}

}  // namespace

TEST_CASE("who asks for copies waits for those of that moment, however many follow") {
  DriverTable driver = events_only();
  Handles handles;
  const Captures captures(driver, handles);
  TakenCopies taken_copies(driver, captures);
  {
    ContextState context;
    StreamState stream;
    stream.context = &context;
    taken_copies.mark(stream);
    taken_copies.mark(stream);
    CHECK(alive.size() == 1);  // one event, while nobody asks
    TakenCopies::Marks asked = TakenCopies::marks_in({&context});
    const CUevent then = context.copy_marks.back()->cuda();
    CHECK(TakenCopies::any_open(asked));
    taken_copies.mark(stream);
    fired.insert(then);
    TakenCopies::Marks now = TakenCopies::marks_in({&context});
    CHECK(TakenCopies::any_open(now));
    CHECK_FALSE(TakenCopies::any_open(asked));
    CHECK(asked.empty());
    taken_copies.mark(stream);
    CHECK(alive.size() == 2);  // one is waited for
    TakenCopies::Marks last = TakenCopies::marks_in({&context});
    CHECK(TakenCopies::any_open(last));
    TakenCopies::context_closes(context);
    CHECK(alive.empty());
    CHECK_FALSE(TakenCopies::any_open(now));  // asks for no event that is gone
    CHECK_FALSE(TakenCopies::any_open(last));
  }
  CHECK(alive.empty());
}
