// The log of errors that programs read.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "client/call/error_log.h"
#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

std::string dump(CUlogIterator* iterator, std::size_t room = 30000) {
  std::string text(room, 'x');
  std::size_t bytes = room;
  REQUIRE(cuLogsDumpToMemory(iterator, text.data(), &bytes, 0) == CUDA_SUCCESS);
  CHECK(text[bytes] == '\0');
  return text.substr(0, bytes);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void fail() { CHECK(cuMemAlloc_v2(nullptr, 8) == CUDA_ERROR_INVALID_VALUE); }

}  // namespace

TEST_CASE("a failed call leaves a line with time, thread, source and what it answered") {
  RemoteContext remote;
  CUlogIterator at = 0;
  REQUIRE(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);
  CHECK(dump(&at).empty());
  fail();
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize_v2(reinterpret_cast<CUcontext>(4)) == CUDA_ERROR_INVALID_CONTEXT);
  const auto lines = lines_of(dump(&at));
  REQUIRE(lines.size() == 2);
  const std::regex form(
      R"(\[\d\d:\d\d:\d\d\.\d\d\d\]\[\d+\]\[CUDA\]\[E\]\[cuMemAlloc_v2\] Returning 1 \(CUDA_ERROR_INVALID_VALUE\) from cuMemAlloc_v2)");
  CHECK(std::regex_match(lines[0], form));
  CHECK(lines[1].find("Returning 201 (CUDA_ERROR_INVALID_CONTEXT) from cuCtxSynchronize_v2") != std::string::npos);
  CHECK(dump(&at).empty());  // the iterator went on
}

TEST_CASE("work that is not ready is no error") {
  RemoteContext remote;
  CUlogIterator at = 0;
  REQUIRE(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuEventRecord(event, nullptr) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  remote.driver->pause(false);
  CHECK(dump(&at).empty());
}

TEST_CASE("where there is little room the latest messages come, under a line that says so") {
  RemoteContext remote;
  CUlogIterator at = 0;
  REQUIRE(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);
  fail();
  CUlogIterator from = at;
  const std::size_t line = dump(&from).size();
  for (int i = 0; i < 5; ++i) fail();
  CHECK(cuCtxSynchronize_v2(reinterpret_cast<CUcontext>(4)) == CUDA_ERROR_INVALID_CONTEXT);
  from = at;
  const auto lines = lines_of(dump(&from, 3 * line + 60));
  REQUIRE(lines.size() >= 3);
  CHECK(lines.size() < 7);
  CHECK(lines[0].find("left out") != std::string::npos);
  CHECK(lines.back().find("cuCtxSynchronize_v2") != std::string::npos);
  char little[20];
  std::size_t bytes = sizeof(little);
  from = at;
  CHECK(cuLogsDumpToMemory(&from, little, &bytes, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(bytes == 0);
  CHECK(from == at);
}

TEST_CASE("only so much is kept") {
  RemoteContext remote;
  CUlogIterator at = 0;
  REQUIRE(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);
  for (int i = 0; i < 1000; ++i) fail();
  CUlogIterator from = at;
  const std::string text = dump(&from, 100'000);
  CHECK(text.size() < client::ErrorLog::bytes_max + 100);
  CHECK(text.size() > client::ErrorLog::bytes_max - 1000);
  CHECK(lines_of(text)[0].find("left out") != std::string::npos);
  CHECK(from == at + 1000);
}

TEST_CASE("callbacks hear of errors until they are taken away") {
  RemoteContext remote;
  std::vector<std::string> heard;
  const auto hear = [](void* data, CUlogLevel level, char* message, std::size_t length) {
    CHECK(level == CU_LOG_LEVEL_ERROR);
    static_cast<std::vector<std::string>*>(data)->emplace_back(message, length);
    CUlogIterator at = 0;
    CHECK(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);  // it may look
  };
  CUlogsCallbackHandle handle = nullptr;
  CHECK(cuLogsRegisterCallback(nullptr, nullptr, &handle) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuLogsRegisterCallback(hear, &heard, &handle) == CUDA_SUCCESS);
  fail();
  REQUIRE(heard.size() == 1);
  CHECK(heard[0].find("cuMemAlloc_v2") != std::string::npos);
  REQUIRE(cuLogsUnregisterCallback(handle) == CUDA_SUCCESS);
  fail();
  CHECK(heard.size() == 1);
  CHECK(cuLogsUnregisterCallback(handle) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the log goes to a file") {
  RemoteContext remote;
  CUlogIterator at = 0;
  REQUIRE(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);
  fail();
  char path[] = "/tmp/fargpu-log-XXXXXX";
  ::close(::mkstemp(path));
  CHECK(cuLogsDumpToFile(&at, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLogsDumpToFile(&at, path, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLogsDumpToFile(nullptr, "/no/such/place", 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);
  fail();
  REQUIRE(cuLogsDumpToFile(&at, path, 0) == CUDA_SUCCESS);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK(lines_of(text.str()).size() == 1);
  CHECK(text.str().find("cuMemAlloc_v2") != std::string::npos);
  ::unlink(path);
}

TEST_CASE("wrong questions of the log are refused") {
  CUlogIterator at = 0;
  char text[10];
  std::size_t bytes = 0;
  CHECK(cuLogsCurrent(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLogsCurrent(&at, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLogsDumpToMemory(&at, text, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLogsDumpToMemory(&at, text, &bytes, 0) == CUDA_ERROR_INVALID_VALUE);  // no room
  bytes = sizeof(text);
  CHECK(cuLogsDumpToMemory(&at, nullptr, &bytes, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuLogsCurrent(&at, 0) == CUDA_SUCCESS);
  ++at;
  bytes = sizeof(text);
  CHECK(cuLogsDumpToMemory(&at, text, &bytes, 0) == CUDA_ERROR_INVALID_VALUE);  // ahead of everything
}
