// Clients that ask for more than they take: what a worker keeps for them in the host's memory has bounds.

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>

#include "calls_context.capnp.h"
#include "calls_stream.capnp.h"
#include "hand_made_client.h"
#include "protocol/image_hash.h"

using namespace fargpu;
using test::HandMadeClient;

namespace {

constexpr std::uint64_t mib = 1u << 20;
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t counted = 4;  // its shadow of what is touched is more than twice as large
#else
constexpr std::uint64_t counted = 1;
#endif

/// Of this process, in which the worker is.
std::uint64_t resident() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, here = 0;
  file >> all >> here;
  return here * 4096;
}

/// Waits until the driver has been called so often.
void wait_for_calls(const char* name, std::size_t times) {
  for (int i = 0; i < 20'000 && fake::FakeDriver::instance()->calls(name) < times; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(fake::FakeDriver::instance()->calls(name) >= times);
}

}  // namespace

TEST_CASE("what is delivered waits at the GPU's side for a client that does not read") {
  constexpr std::uint64_t bytes = 4 * mib, times = 64;
  HandMadeClient client(0, false, false, 8 * mib);
  client.open_context();
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(0x1000'0000'0000);
    in.setBytes(bytes);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [](auto in) {
    in.setAddress(0x5000);
    in.setBytes(bytes);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  const std::size_t copied = fake::FakeDriver::instance()->calls("cuMemcpyDtoHAsync_v2");
  const std::uint64_t before = resident();
  {
    const test::Paused paused;
    for (std::uint64_t i = 0; i < times; ++i) {
      client.send_call<wire::CopyOut>(
          Opcode::copyOut,
          [](wire::CopyOut::Builder in) {
            in.setStream(1);
            in.initCopy().setWidth(bytes);
            in.getCopy().initSource().getPlace().setDevice(0x1000'0000'0000);
            in.getCopy().initTarget().getPlace().setBlock(0x5000);
          },
          {}, false);
    }
    wait_for_calls("cuMemcpyDtoHAsync_v2", copied + times);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(resident() < before + 64 * mib * counted);
  // A client that reads gets all of it.
  client.send_call<wire::CuStreamSynchronize>(Opcode::cuStreamSynchronize, [](auto in) { in.setHStream(1); });
  CHECK(client.reply() == CUDA_SUCCESS);
}

TEST_CASE("a client that asks for mapped memory and does not read has no more of it made ready than may wait") {
  constexpr std::uint64_t bytes = 16 * mib, times = 32;
  HandMadeClient client(0, false, false, 32 * mib);
  client.open_context();
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [](auto in) {
    in.setAddress(0x5000);
    in.setBytes(bytes);
    in.setMapped(true);
    in.setPaged(true);
    in.setDevice(HandMadeClient::host_window);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  const std::uint64_t before = resident();
  for (std::uint64_t i = 0; i < times; ++i) {
    client.send_call<wire::ReadHostBlock>(Opcode::readHostBlock, [](auto in) {
      in.setAddress(0x5000);
      in.setBytes(bytes);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(resident() < before + 6 * bytes * counted);
  // A client that reads gets all of it.
  for (std::uint64_t i = 0; i < times; ++i) CHECK(client.reply() == CUDA_SUCCESS);
}

TEST_CASE("a copy of pinned memory is counted with what it takes, however small the memory is") {
  constexpr std::uint64_t bytes = 8 * mib;
  HandMadeClient client(bytes);
  client.open_context();
  std::uint64_t opened = 0;
  CUresult result = CUDA_SUCCESS;
  for (; opened < 20'000 && result == CUDA_SUCCESS; ++opened) {
    client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [&](auto in) {
      in.setAddress(0x5000 + opened);
      in.setBytes(1);
    });
    result = client.reply();
  }
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(opened > 100);
  CHECK(opened < bytes / 1024);
}

TEST_CASE("staging memory whose context has gone is counted while bytes in it are on their way") {
  constexpr std::uint64_t bytes = 2 * mib;
  HandMadeClient client(96 * mib);
  client.open_context();
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(0x1000'0000'0000);
    in.setBytes(bytes);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  std::size_t closed = fake::FakeDriver::instance()->calls("cuDevicePrimaryCtxReset_v2");
  const std::size_t copied = fake::FakeDriver::instance()->calls("cuMemcpyDtoHAsync_v2");
  for (std::size_t round = 1; round <= 3; ++round) {
    client.send_call<wire::CopyOut>(Opcode::copyOut, [](wire::CopyOut::Builder in) {
      in.setStream(1);
      in.initCopy().setWidth(bytes);
      in.getCopy().initSource().getPlace().setDevice(0x1000'0000'0000);
    });
    if (round < 3) wait_for_calls("cuMemcpyDtoHAsync_v2", copied + round);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it is on its way
    client.send_call<wire::CloseContext>(Opcode::closeContext,
                                         [](auto in) { in.setContext(Handle(HandleKind::context, 1, 1).value()); });
    wait_for_calls("cuDevicePrimaryCtxReset_v2", ++closed);
    client.send_call<wire::OpenContext>(Opcode::openContext, [](wire::OpenContext::Builder in) {
      in.setContext(Handle(HandleKind::context, 1, 1).value());
      in.setPrimary(true);
    });
  }
  // Once it is read, there is room again.
  for (const CUresult wanted : {CUDA_SUCCESS, CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY}) {
    CHECK(client.reply() == wanted);
    CHECK(client.reply() == CUDA_SUCCESS);
    CHECK(client.reply() == CUDA_SUCCESS);
  }
  client.send_call<wire::CopyOut>(Opcode::copyOut, [](wire::CopyOut::Builder in) {
    in.setStream(1);
    in.initCopy().setWidth(bytes);
    in.getCopy().initSource().getPlace().setDevice(0x1000'0000'0000);
  });
  CHECK(client.reply() == CUDA_SUCCESS);
}

TEST_CASE("waits for what is held back take memory that is counted") {
  HandMadeClient client(4 * mib);
  client.open_context();
  client.send_call<wire::HostFunction>(Opcode::hostFunction, [](auto in) {
    in.setStream(1);
    in.setCallback(1);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  const std::uint64_t before = resident();
  for (int i = 0; i < 20'000; ++i) client.send_call<wire::CuCtxSynchronize>(Opcode::cuCtxSynchronize, [](auto) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  CHECK(resident() < before + 64 * mib * counted);
}

TEST_CASE("what is kept of code that is loaded again and again is counted") {
  HandMadeClient client(4 * mib);
  client.open_context();
  // Containers with nothing in them: a pointer to each is kept, which is half of what it takes itself.
  constexpr std::size_t containers = 4096, header_bytes = 16;
  std::vector<std::byte> image(containers * header_bytes);
  for (std::size_t i = 0; i < containers; ++i) {
    const auto put = [&](std::size_t offset, auto value) {
      std::memcpy(image.data() + i * header_bytes + offset, &value, sizeof(value));
    };
    put(0, std::uint32_t{0xBA55ED50});
    put(4, std::uint16_t{1});
    put(6, std::uint16_t{header_bytes});
  }
  const ImageHash hash = hash_image(image);
  const auto name = [&](auto in) {
    in.setHash(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(hash.data()), hash.size()));
    in.setBytes(image.size());
  };
  client.send_call<wire::SendImage>(Opcode::sendImage, name, image, false);
  int loads = 0;
  for (CUresult result = CUDA_SUCCESS; result != CUDA_ERROR_OUT_OF_MEMORY && loads < 1000; ++loads) {
    client.send_call<wire::LoadImage>(Opcode::loadImage, [&](auto in) {
      name(in);
      in.setModule(true);
      in.setWrapped(true);
    });
    result = client.reply();
    CHECK((result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY));
  }
  CHECK(loads < 1000);
}

TEST_CASE("a session that has too much waiting ends") {
  HandMadeClient client;
  client.open_context();
  client.send_call<wire::HostFunction>(Opcode::hostFunction, [](auto in) {
    in.setStream(1);
    in.setCallback(1);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  for (int i = 0; i < 1'100'000; ++i)
    client.send_call<wire::CuStreamSynchronize>(Opcode::cuStreamSynchronize, [](auto in) { in.setHStream(1); });
  CHECK(client.worker_end().find("more things wait") != std::string::npos);
}
