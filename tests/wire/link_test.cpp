// Linking of GPU code through the wire.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <string>

#include "calls_module.capnp.h"
#include "client/call/stats.h"
#include "fixture.h"
#include "hand_made_client.h"
#include "protocol/image_hash.h"

using namespace fargpu;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

const std::string first = ".version 8.0\n.entry first()\n";
const std::string second = ".entry second(.param .u32 a)\n";

CUresult add(CUlinkState state, const std::string& text, CUjitInputType type = CU_JIT_INPUT_PTX,
             const char* name = "input") {
  return cuLinkAddData_v2(state, type, const_cast<char*>(text.c_str()), text.size() + 1, name, 0, nullptr, nullptr);
}

std::uint64_t frames(Opcode opcode) { return client::stats::of(opcode).sent.load(); }

/// A file that goes with this object.
struct File {
  explicit File(const std::string& text) {
    const int descriptor = ::mkstemp(path);
    REQUIRE(::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(descriptor);
  }
  ~File() { ::unlink(path); }
  char path[40] = "/tmp/fargpu-link-XXXXXX";
};

}  // namespace

TEST_CASE("what was linked is loaded like any image") {
  RemoteContext remote;
  const std::size_t objects = remote.driver->objects();
  CUlinkState state = nullptr;
  REQUIRE(cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
  CHECK(handle_of(state).well_formed(HandleKind::link));
  REQUIRE(add(state, first) == CUDA_SUCCESS);
  const File file(second);
  REQUIRE(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, file.path, 0, nullptr, nullptr) == CUDA_SUCCESS);
  void* image = nullptr;
  std::size_t bytes = 0;
  REQUIRE(cuLinkComplete(state, &image, &bytes) == CUDA_SUCCESS);
  CHECK(std::string(static_cast<char*>(image)) == first + second);
  CHECK(bytes == first.size() + second.size() + 1);
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
  REQUIRE(cuLinkDestroy(state) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  CHECK(cuModuleGetFunction(&function, module, "first") == CUDA_SUCCESS);
  CHECK(cuModuleGetFunction(&function, module, "second") == CUDA_SUCCESS);
  CHECK(cuLinkDestroy(state) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(add(state, first) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLinkComplete(state, &image, &bytes) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(remote.driver->objects() == objects);
}

TEST_CASE("a result of many megabytes comes back whole") {
  RemoteContext remote;
  CUlinkState state = nullptr;
  REQUIRE(cuLinkCreate(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
  std::string large = first;
  while (large.size() < (9u << 20)) large += "// " + std::to_string(large.size()) + "\n";
  REQUIRE(add(state, large) == CUDA_SUCCESS);
  void* image = nullptr;
  std::size_t bytes = 0;
  REQUIRE(cuLinkComplete(state, &image, &bytes) == CUDA_SUCCESS);
  CHECK(bytes == large.size() + 1);
  CHECK(std::memcmp(image, large.c_str(), bytes) == 0);
  REQUIRE(cuLinkDestroy(state) == CUDA_SUCCESS);
}

TEST_CASE("an input travels once, however often it is linked") {
  RemoteContext remote;
  const std::string own = first + "// linked twice\n";
  const auto before = frames(Opcode::sendImage);
  for (int i = 0; i < 2; ++i) {
    CUlinkState state = nullptr;
    REQUIRE(cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
    REQUIRE(cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(own.c_str()), own.size() + 1, nullptr, 0, nullptr,
                          nullptr) == CUDA_SUCCESS);
    REQUIRE(cuLinkDestroy(state) == CUDA_SUCCESS);
  }
  CHECK(frames(Opcode::sendImage) == before + 1);
}

TEST_CASE("a link is used in the context in which it was made, whichever is current") {
  RemoteContext remote;
  CUlinkState state = nullptr;
  REQUIRE(cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  CHECK(add(state, first) == CUDA_SUCCESS);
  void* image = nullptr;
  CHECK(cuLinkComplete(state, &image, nullptr) == CUDA_SUCCESS);
  CHECK(cuLinkDestroy(state) == CUDA_SUCCESS);
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, first.c_str()) == CUDA_SUCCESS);  // in the current one, as before
  REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  CHECK(cuModuleGetFunction(&function, module, "first") != CUDA_SUCCESS);
}

TEST_CASE("what an input is called is there until the link is complete") {
  RemoteContext remote;
  CUlinkState state = nullptr;
  REQUIRE(cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
  for (const char letter : {'a', 'b', 'c'})
    REQUIRE(add(state, first, CU_JIT_INPUT_PTX, std::string(1000, letter).c_str()) == CUDA_SUCCESS);
  void* image = nullptr;
  CHECK(cuLinkComplete(state, &image, nullptr) == CUDA_SUCCESS);
  CHECK(cuLinkDestroy(state) == CUDA_SUCCESS);
}

TEST_CASE("the linker's words come back while the link lives") {
  RemoteContext remote;
  char log[30] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_TARGET};
  void* values[] = {reinterpret_cast<void*>(sizeof(log)), log, reinterpret_cast<void*>(std::size_t{90})};
  CUlinkState state = nullptr;
  REQUIRE(cuLinkCreate_v2(3, options, values, &state) == CUDA_SUCCESS);
  CHECK(remote.driver->last_arguments("cuLinkCreate_v2")[0] == 3);
  CHECK(add(state, "a syntax error", CU_JIT_INPUT_PTX, "broken.ptx") == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log) == "broken.ptx: syntax error");
  CHECK(reinterpret_cast<std::size_t>(values[0]) == std::strlen(log));
  const File file("a syntax error");
  CHECK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, file.path, 0, nullptr, nullptr) == CUDA_ERROR_INVALID_PTX);
  // In the room that there was at first.
  CHECK(std::string(log, sizeof(log)).substr(0, 12) == std::string(file.path).substr(0, 12));
  CHECK(cuLinkDestroy(state) == CUDA_SUCCESS);
}

TEST_CASE("what cannot be linked is refused") {
  RemoteContext remote;
  CUlinkState state = nullptr;
  void* image = nullptr;
  CHECK(cuLinkCreate_v2(0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLinkCreate_v2(1, nullptr, nullptr, &state) == CUDA_ERROR_INVALID_VALUE);
  CUjit_option option = CU_JIT_GLOBAL_SYMBOL_NAMES;
  void* value = &state;
  CHECK(cuLinkCreate_v2(1, &option, &value, &state) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
  CHECK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, nullptr, 5, nullptr, 0, nullptr, nullptr) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, &state, 0, nullptr, 0, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(add(state, first, static_cast<CUjitInputType>(99)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(add(state, first, CU_JIT_INPUT_CUBIN) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, nullptr, 0, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLinkAddFile_v2(state, CU_JIT_INPUT_PTX, "/no/such.ptx", 0, nullptr, nullptr) == CUDA_ERROR_FILE_NOT_FOUND);
  CHECK(cuLinkComplete(state, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLinkComplete(nullptr, &image, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLinkDestroy(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLinkDestroy(state) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a worker checks what it is told of links") {
  HandMadeClient client;
  client.open_context();
  const auto refused = [&](std::uint64_t link) {
    client.send_call<wire::CompleteLink>(Opcode::completeLink,
                                         [&](wire::CompleteLink::Builder in) { in.setLink(link); });
    CHECK(client.reply() == CUDA_ERROR_INVALID_HANDLE);
  };
  refused(0);
  refused(Handle(HandleKind::link, Handle::worker_index_first, 0).value());
  const auto options = [&](CUjit_option option, std::uint64_t value) {
    client.send_call<wire::CreateLink>(Opcode::createLink, [&](wire::CreateLink::Builder in) {
      auto jit = in.initJit(1);
      jit[0].setOption(option);
      jit[0].setValue(value);
    });
    return client.reply();
  };
  CHECK(options(CU_JIT_GLOBAL_SYMBOL_ADDRESSES, 0x1000) == CUDA_ERROR_INVALID_VALUE);
  CHECK(options(static_cast<CUjit_option>(1000), 0x1000) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(options(CU_JIT_OPTIMIZATION_LEVEL, 4) == CUDA_SUCCESS);
  const std::uint64_t link = Handle(HandleKind::link, Handle::worker_index_first, 1).value();
  const auto add_input = [&](std::uint64_t hash_bytes, CUjit_option option) {
    const std::vector<kj::byte> hash(hash_bytes);
    client.send_call<wire::AddToLink>(Opcode::addToLink, [&](wire::AddToLink::Builder in) {
      in.setLink(link);
      in.setType(CU_JIT_INPUT_PTX);
      in.setHash(capnp::Data::Reader(hash.data(), hash.size()));
      in.setBytes(10);
      in.initJit(1)[0].setOption(option);
    });
    return client.reply();
  };
  CHECK(add_input(3, CU_JIT_OPTIMIZATION_LEVEL) == CUDA_ERROR_INVALID_VALUE);
  CHECK(add_input(sizeof(ImageHash), CU_JIT_INFO_LOG_BUFFER) == CUDA_ERROR_INVALID_VALUE);
  CHECK(add_input(sizeof(ImageHash), CU_JIT_OPTIMIZATION_LEVEL) == CUDA_SUCCESS);  // not known: to be sent
  const auto fetch = [&](std::uint64_t offset, std::uint64_t bytes) {
    client.send_call<wire::FetchLinked>(Opcode::fetchLinked, [&](wire::FetchLinked::Builder in) {
      in.setLink(link);
      in.setOffset(offset);
      in.setBytes(bytes);
    });
    return client.reply();
  };
  CHECK(fetch(0, 1) == CUDA_ERROR_INVALID_VALUE);  // nothing is linked yet
  CHECK(fetch(1, 0) == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::CompleteLink>(Opcode::completeLink, [&](wire::CompleteLink::Builder in) { in.setLink(link); });
  CHECK(client.reply() == CUDA_SUCCESS);
  CHECK(fetch(0, 1) == CUDA_SUCCESS);
  CHECK(fetch(0, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fetch(~std::uint64_t{0}, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fetch(0, ~std::uint64_t{0}) == CUDA_ERROR_INVALID_VALUE);
}
