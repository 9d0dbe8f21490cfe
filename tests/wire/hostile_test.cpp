// Peers that do not keep to the protocol: a client that sends nonsense to a worker, a worker that sends nonsense to a
// client, and a connection that breaks. Nothing else may suffer, and each end says what was wrong.

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "calls_context.capnp.h"
#include "calls_copy.capnp.h"
#include "calls_graph.capnp.h"
#include "calls_stream.capnp.h"
#include "calls_vmm.capnp.h"
#include "client/session/dial.h"
#include "fixture.h"
#include "hand_made_client.h"
#include "operations.capnp.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/image_hash.h"
#include "protocol/message.h"

using namespace fargpu;
using test::HandMadeClient;
using test::send_until_cut;

TEST_CASE("a worker refuses what it can refuse, and goes on") {
  HandMadeClient client;
  FrameHeader unknown = client.call(Opcode::fence);
  unknown.opcode = 60000;
  client.send(unknown);
  CHECK(client.reply() == CUDA_ERROR_NOT_SUPPORTED);
  client.send_call<wire::CuStreamSynchronize>(Opcode::cuStreamSynchronize, [](auto in) { in.setHStream(1); });
  CHECK(client.reply() == CUDA_ERROR_INVALID_CONTEXT);
  client.open_context();
  for (const std::uint64_t stream : {0ull, 2ull, ~0ull, 0x602000000001ull}) {
    client.send_call<wire::CuStreamSynchronize>(Opcode::cuStreamSynchronize, [&](auto in) { in.setHStream(stream); });
    CHECK(client.reply() == CUDA_ERROR_INVALID_HANDLE);
  }
  // Addresses outside of what the session holds, whatever the arithmetic.
  for (const std::uint64_t address : {0ull, 0x1000'0000'0000ull, 0x7fff'ffff'f000ull, ~0ull - 100}) {
    for (const std::uint64_t bytes : {1ull, 1ull << 40, ~0ull, ~0ull / 4 + 1}) {
      client.send_call<wire::CuMemsetD32Async>(Opcode::cuMemsetD32Async, [&](auto in) {
        in.setDstDevice(address);
        in.setN(bytes);
        in.setHStream(1);
      });
      CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
    }
  }
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(0x1000'0000'0000 - (2u << 20));
    in.setBytes(4u << 20);
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::KernelFunction>(Opcode::kernelFunction, [](auto in) {
    in.setKernel(Handle(HandleKind::kernel, Handle::worker_index_first, 1).value());
    in.setFunction(Handle(HandleKind::function, 1, 1).value());
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_HANDLE);
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [](auto in) {
    in.setAddress(0x5000);
    in.setBytes(4096);
    in.setMapped(true);
    in.setDevice(0x400000);  // the worker's own memory
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::CuStreamSynchronize>(Opcode::cuStreamSynchronize, [](auto in) { in.setHStream(1); });
  CHECK(client.reply() == CUDA_SUCCESS);
}

TEST_CASE("a worker keeps large host blocks within their bounds") {
  HandMadeClient client;
  client.open_context();
  constexpr std::uint64_t window = HandMadeClient::host_window, bytes = 6u << 20;
  const auto open = [&](std::uint64_t address, std::uint64_t size, std::uint64_t device) {
    client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [&](auto in) {
      in.setAddress(address);
      in.setBytes(size);
      in.setMapped(true);
      in.setPaged(true);
      in.setDevice(device);
    });
    return client.reply();
  };
  CHECK(open(0x5000, (std::uint64_t{64} << 30) + 1, window) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(0x5000, ~std::uint64_t{0}, window) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(~std::uint64_t{0} - 4096, bytes, window) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(0x5000, bytes, window + (std::uint64_t{64} << 30) - 4096) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(open(0x5000, bytes, window) == CUDA_SUCCESS);
  // Kernels see another block there.
  CHECK(open(0x10'0000'0000, bytes, window + bytes - 4096) == CUDA_ERROR_INVALID_VALUE);
  const auto read = [&](std::uint64_t address, std::uint64_t size) {
    client.send_call<wire::ReadHostBlock>(Opcode::readHostBlock, [&](auto in) {
      in.setAddress(address);
      in.setBytes(size);
    });
    return client.reply();
  };
  const std::vector<std::byte> contents(100, std::byte{7});
  const auto write = [&](std::uint64_t address) {
    client.send_call<wire::WriteHostBlock>(
        Opcode::writeHostBlock, [&](auto in) { in.setAddress(address); }, contents);
    return client.reply();
  };
  CHECK(write(0x5000 + bytes - 100) == CUDA_SUCCESS);
  CHECK(write(0x5000 + bytes - 99) == CUDA_ERROR_INVALID_VALUE);
  CHECK(write(0x4fff) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read(0x5000, bytes) == CUDA_SUCCESS);
  CHECK(read(0x5000, bytes + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read(0x5000 + 1, bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read(0x5000, ~std::uint64_t{0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read(0x4000, 1) == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::CloseHostBlock>(Opcode::closeHostBlock, [](auto in) { in.setAddress(0x5000); });
  CHECK(client.reply() == CUDA_SUCCESS);
  CHECK(read(0x5000, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(open(0x5000, bytes, window) == CUDA_SUCCESS);
  client.send_call<wire::ReadHostBlock>(
      Opcode::readHostBlock, [&](auto in) { in.setAddress(0x5000); }, {}, false);
  CHECK(client.worker_end().find("nobody waits") != std::string::npos);
}

namespace {

constexpr std::uint64_t changed_block = 0x5000, changed_bytes = 1u << 20;

void open_changed_block(HandMadeClient& client, bool paged) {
  client.open_context();
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [&](auto in) {
    in.setAddress(changed_block);
    in.setBytes(changed_bytes);
    in.setMapped(true);
    in.setPaged(paged);
    in.setDevice(HandMadeClient::host_window);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
}

void send_change(HandMadeClient& client, std::uint64_t address, std::span<const std::byte> both) {
  client.send_call<wire::ChangeHostBlock>(
      Opcode::changeHostBlock, [&](auto in) { in.setAddress(address); }, both);
}

CUresult change(HandMadeClient& client, std::uint64_t address, std::vector<std::uint32_t> now,
                const std::vector<std::uint32_t>& known) {
  now.insert(now.end(), known.begin(), known.end());
  send_change(client, address, std::as_bytes(std::span(now)));
  return client.reply();
}

constexpr std::uint64_t changed_memory = 0x1000'0000'0000, changed_memory_bytes = 4u << 20;

void back_changed_memory(HandMadeClient& client) {
  client.open_context();
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(changed_memory);
    in.setBytes(changed_memory_bytes);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
}

void send_change_by_copy(HandMadeClient& client, std::uint64_t address, std::span<const std::byte> both,
                         const CopyShape& shape) {
  client.send_call<wire::CopyIn>(
      Opcode::copyIn,
      [&](auto in) {
        in.setStream(1);
        in.setTakenForDone(true);
        encode(shape, {.kind = CopySide::Kind::changes},
               {.kind = CopySide::Kind::device, .place = address, .pitch = shape.width}, in.initCopy());
      },
      both);
}

CUresult change_by_copy(HandMadeClient& client, std::uint64_t address, std::vector<std::uint32_t> now,
                        const std::vector<std::uint32_t>& known) {
  const CopyShape shape{4 * now.size()};
  now.insert(now.end(), known.begin(), known.end());
  send_change_by_copy(client, address, std::as_bytes(std::span(now)), shape);
  return client.reply();
}

}  // namespace

TEST_CASE("a worker writes the words that a client changed, and tells of those that the GPU had changed too") {
  HandMadeClient client;
  const bool by_copy = GENERATE(false, true);
  if (by_copy) back_changed_memory(client);
  else open_changed_block(client, true);
  const std::uint64_t at = (by_copy ? changed_memory : changed_block) + 4096;
  const auto lost = [&](const std::vector<std::uint32_t>& now, const std::vector<std::uint32_t>& known) {
    REQUIRE((by_copy ? change_by_copy : change)(client, at, now, known) == CUDA_SUCCESS);
    return client.lost_word();
  };
  if (by_copy) lost({0, 0, 0, 0}, {1, 1, 1, 1});  // whatever was there
  CHECK(lost({1, 2, 3, 4}, {0, 0, 0, 0}) == 0);
  CHECK(lost({5, 2, 3, 4}, {1, 2, 3, 4}) == 0);
  CHECK(lost({6, 2, 3, 4}, {1, 2, 3, 4}) == at);
  CHECK(lost({6, 2, 3, 4}, {1, 2, 3, 4}) == 0);  // both to the same
  CHECK(lost({1, 8, 8, 4}, {1, 8, 8, 4}) == 0);  // nothing is changed
  CHECK(lost({6, 2, 3, 9}, {6, 2, 3, 1}) == at + 12);
  CHECK(lost({6, 7, 3, 9}, {6, 2, 3, 9}) == 0);
  CHECK(lost({0, 0, 0, 0}, {6, 7, 3, 9}) == 0);  // so that was all in place
  const std::vector<std::byte> pair{std::byte{1}, std::byte{0}};
  if (by_copy) send_change_by_copy(client, at + 5, pair, {1});  // no whole word
  else send_change(client, at + 5, pair);
  CHECK(client.reply() == CUDA_SUCCESS);
  CHECK(client.lost_word() == 0);
  CHECK(lost({0, 0, 0, 0}, {0, 256, 0, 0}) == 0);
}

TEST_CASE("a worker changes no memory that is not the client's to change") {
  HandMadeClient client;
  SECTION("beyond the ends") {
    open_changed_block(client, true);
    constexpr std::uint64_t end = changed_block + changed_bytes;
    CHECK(change(client, end - 4, {1}, {0}) == CUDA_SUCCESS);
    for (const std::uint64_t address :
         {end - 3, end, changed_block - 1, std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{3}})
      CHECK(change(client, address, {1}, {0}) == CUDA_ERROR_INVALID_VALUE);
  }
  SECTION("a block whose two copies are compared") {
    open_changed_block(client, false);
    CHECK(change(client, changed_block, {1}, {0}) == CUDA_ERROR_INVALID_VALUE);
  }
  SECTION("without what was there before") {
    open_changed_block(client, true);
    send_change(client, changed_block, std::vector<std::byte>(GENERATE(0, 1, 7)));
    CHECK(client.worker_end().find("without what was there before") != std::string::npos);
  }
}

TEST_CASE("a worker neither tells nor changes who has access to memory that is not the client's") {
  HandMadeClient client;
  client.open_context();
  constexpr std::uint64_t base = 0x1000'0000'0000, piece = 2u << 20, end = base + 2 * piece;
  for (const std::uint64_t address : {base, base + piece}) {
    client.send_call<wire::BackMemory>(Opcode::backMemory, [&](auto in) {
      in.setAddress(address);
      in.setBytes(piece);
    });
    REQUIRE(client.reply() == CUDA_SUCCESS);
  }
  const auto get = [&](std::uint64_t address) {
    client.send_call<wire::CuMemGetAccess>(Opcode::cuMemGetAccess, [&](auto in) { in.setPtr(address); });
    return client.reply();
  };
  const auto set = [&](std::uint64_t address, std::uint64_t bytes) {
    client.send_call<wire::CuMemSetAccess>(Opcode::cuMemSetAccess, [&](auto in) {
      in.setPtr(address);
      in.setSize(bytes);
      in.initDesc(1)[0].setFlags(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      in.setCount(1);
    });
    return client.reply();
  };
  for (const std::uint64_t address : {base, base + piece + 1, end - 1}) CHECK(get(address) == CUDA_SUCCESS);
  CHECK(set(base, 2 * piece) == CUDA_SUCCESS);
  auto& driver = fake::FakeDriver::instance();
  const auto asked = [&] { return driver->calls("cuMemGetAccess") + driver->calls("cuMemSetAccess"); };
  const std::size_t before = asked();
  for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{0x400000}, base - 1, end, ~std::uint64_t{0}}) {
    CHECK(get(address) == CUDA_ERROR_INVALID_VALUE);
    CHECK(set(address, piece) == CUDA_ERROR_INVALID_VALUE);
  }
  for (const std::uint64_t bytes : {2 * piece + 1, 3 * piece, ~std::uint64_t{0}})
    CHECK(set(base, bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(asked() == before);
}

TEST_CASE("a worker copies changes to one row of memory that is the client's, with what was there before") {
  HandMadeClient client;
  back_changed_memory(client);
  constexpr std::uint64_t end = changed_memory + changed_memory_bytes;
  const std::vector<std::byte> both(8);
  SECTION("beyond the ends") {
    CHECK(change_by_copy(client, end - 4, {1}, {0}) == CUDA_SUCCESS);
    for (const std::uint64_t address :
         {end - 3, end, changed_memory - 1, std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{3}})
      CHECK(change_by_copy(client, address, {1}, {0}) == CUDA_ERROR_INVALID_VALUE);
  }
  SECTION("of several rows, of none") {
    for (const CopyShape& shape : {CopyShape{2, 2}, CopyShape{2, 1, 2}, CopyShape{0}}) {
      send_change_by_copy(client, changed_memory, both, shape);
      CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
    }
  }
  SECTION("of many words") {
    constexpr std::size_t words = 100'000;
    std::vector<std::uint32_t> now(words), none(words);
    REQUIRE(change_by_copy(client, changed_memory, now, std::vector<std::uint32_t>(words, 1)) == CUDA_SUCCESS);
    client.lost_word();
    for (std::size_t i = 0; i < words; i += 2) now[i] = static_cast<std::uint32_t>(i + 5);
    CHECK(change_by_copy(client, changed_memory, now, none) == CUDA_SUCCESS);
    CHECK(client.lost_word() == 0);
    CHECK(change_by_copy(client, changed_memory, none, now) == CUDA_SUCCESS);
    CHECK(client.lost_word() == 0);  // so that was all in place
  }
  SECTION("of half a byte") {
    send_change_by_copy(client, changed_memory, std::span(both).first(7), {3});
    CHECK(client.worker_end().find("without what was there before") != std::string::npos);
  }
  SECTION("without what was there before") {
    send_change_by_copy(client, changed_memory, both, {GENERATE(std::uint64_t{3}, 5, 8, changed_memory_bytes)});
    CHECK(client.worker_end().find("without what was there before") != std::string::npos);
  }
}

TEST_CASE("changes that a session has no room to keep are refused") {
  HandMadeClient client(1 << 20);
  back_changed_memory(client);
  const std::vector<std::byte> both(2 << 20);
  send_change_by_copy(client, changed_memory, both, {both.size() / 2});
  CHECK(client.reply() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(change_by_copy(client, changed_memory, {1}, {0}) == CUDA_SUCCESS);
}

namespace {

constexpr std::uint32_t changed_last = 99;
decltype(server::DriverTable::cuMemcpyHtoDAsync_v2) copy_in = nullptr;

}  // namespace

// The one moment of which nobody can tell: as if the program had written last on one machine.
TEST_CASE("what the GPU changes between a worker's look and its copy is replaced by what the client wrote") {
  HandMadeClient client;
  back_changed_memory(client);
  const auto lost = [&](const std::vector<std::uint32_t>& now, const std::vector<std::uint32_t>& known) {
    REQUIRE(change_by_copy(client, changed_memory, now, known) == CUDA_SUCCESS);
    return client.lost_word();
  };
  lost({0, 0, 0}, {1, 1, 1});
  auto& place = fake::FakeDriver::instance().table().cuMemcpyHtoDAsync_v2;
  copy_in = place;
  const std::unique_ptr<decltype(copy_in), void (*)(decltype(copy_in)*)> put_back(
      &place, [](decltype(copy_in)* changed) { *changed = copy_in; });
  place = [](CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    copy_in(to, &changed_last, sizeof(changed_last), stream);
    copy_in(to + 4, &changed_last, sizeof(changed_last), stream);
    return copy_in(to, from, bytes, stream);
  };
  CHECK(lost({7, 0, 0}, {0, 0, 0}) == 0);
  place = copy_in;
  CHECK(lost({8, 100, 0}, {7, changed_last, 0}) == 0);  // what the GPU did to the other word stays
}

TEST_CASE("a worker looks at no container beyond the end of its image") {
  HandMadeClient client;
  client.open_context();
  std::vector<std::byte> container(16);
  const auto put = [&](std::size_t offset, auto value) {
    std::memcpy(container.data() + offset, &value, sizeof(value));
  };
  const auto load = [&] {
    const ImageHash hash = hash_image(container);
    const auto name = [&](auto in) {
      in.setHash(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(hash.data()), hash.size()));
      in.setBytes(container.size());
    };
    client.send_call<wire::SendImage>(Opcode::sendImage, name, container, false);
    client.send_call<wire::LoadImage>(Opcode::loadImage, [&](auto in) {
      name(in);
      in.setModule(true);
      in.setWrapped(true);
    });
    return client.reply();
  };
  put(0, std::uint32_t{0xBA55ED50});
  put(4, std::uint16_t{1});
  put(6, std::uint16_t{16});
  for (const std::uint64_t bytes : {std::uint64_t{1}, ~std::uint64_t{0}, ~std::uint64_t{0} - 15}) {
    put(8, bytes);
    CHECK(load() == CUDA_ERROR_INVALID_IMAGE);
  }
  put(8, std::uint64_t{0});
  for (const std::uint16_t header_bytes : {0, 15, 17}) {
    put(6, header_bytes);
    CHECK(load() == CUDA_ERROR_INVALID_IMAGE);
  }
  put(6, std::uint16_t{16});
  container.resize(31);  // what follows is cut off
  CHECK(load() == CUDA_ERROR_INVALID_IMAGE);
  container.resize(32);
  CHECK(load() == CUDA_ERROR_INVALID_IMAGE);
}

TEST_CASE("a worker lets the driver look at no image that claims to be longer than it is") {
  HandMadeClient client;
  client.open_context();
  const auto load = [&](const std::vector<std::byte>& image) {
    const ImageHash hash = hash_image(image);
    const auto name = [&](auto in) {
      in.setHash(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(hash.data()), hash.size()));
      in.setBytes(image.size());
    };
    client.send_call<wire::SendImage>(Opcode::sendImage, name, image, false);
    client.send_call<wire::LoadImage>(Opcode::loadImage, [&](auto in) {
      name(in);
      in.setModule(true);
    });
    return client.reply();
  };
  const auto bytes = [](std::size_t count, auto&& fill) {
    std::vector<std::byte> image(count);
    fill([&](std::size_t offset, auto value) { std::memcpy(image.data() + offset, &value, sizeof(value)); });
    return image;
  };
  const unsigned before = fake::FakeDriver::instance()->calls("cuModuleLoadDataEx");
  CHECK(load(bytes(32, [](auto put) {  // a container
          put(0, std::uint32_t{0xBA55ED50});
          put(6, std::uint16_t{16});
          put(8, std::uint64_t{17});
        })) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(load(bytes(128, [](auto put) {  // an ELF file with its sections behind its end
          put(0, std::uint32_t{0x464C457F});
          put(4, std::uint16_t{0x0102});
          put(40, std::uint64_t{100});
          put(58, std::uint16_t{64});
          put(60, std::uint16_t{1});
        })) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(load(bytes(32, [](auto put) {  // a wrapper, which points anywhere
          put(0, std::uint32_t{0x466243B1});
          put(4, std::uint32_t{1});
          put(8, std::uint64_t{0x1000});
        })) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(fake::FakeDriver::instance()->calls("cuModuleLoadDataEx") == before);
}

namespace {

template <class Request>
CUresult copied(HandMadeClient& client, Opcode opcode, const CopySide& source, const CopySide& target) {
  client.send_call<Request>(opcode, [&](auto in) {
    in.setStream(1);
    encode({8}, source, target, in.initCopy());
  });
  return client.reply();
}

}  // namespace

TEST_CASE("a worker takes so much of its host's memory for a session and no more") {
  constexpr std::uint64_t mib = 1u << 20;
  HandMadeClient client(mib + limits::credit_bytes_min);
  REQUIRE(client.credit_bytes() == limits::credit_bytes_min);
  client.open_context();
  const auto open = [&](std::uint64_t address, std::uint64_t bytes) {
    client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [&](auto in) {
      in.setAddress(address);
      in.setBytes(bytes);
    });
    return client.reply();
  };
  const auto close = [&](std::uint64_t address) {
    client.send_call<wire::CloseHostBlock>(Opcode::closeHostBlock, [&](auto in) { in.setAddress(address); });
    return client.reply();
  };
  SECTION("copies of pinned memory") {
    client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
      in.setAddress(0x1000'0000'0000);
      in.setBytes(4u << 20);
    });
    REQUIRE(client.reply() == CUDA_SUCCESS);
    const CopySide device{.kind = CopySide::Kind::device, .place = 0x1000'0000'0000, .pitch = 8};
    const auto copy_to = [&](std::uint64_t address) {
      return copied<wire::CopyOut>(client, Opcode::copyOut, device, {.kind = CopySide::Kind::block, .place = address});
    };
    // Where there is no room, the place is kept until a copy is to go there.
    CHECK(open(0x100'0000, mib + 1) == CUDA_SUCCESS);
    CHECK(copy_to(0x100'0000) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(close(0x100'0000) == CUDA_SUCCESS);
    CHECK(open(0x100'0000, mib / 2) == CUDA_SUCCESS);
    CHECK(copy_to(0x100'0000) == CUDA_SUCCESS);
    CHECK(open(0x200'0000, mib / 2 + 1) == CUDA_SUCCESS);
    CHECK(copy_to(0x200'0000) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(close(0x100'0000) == CUDA_SUCCESS);
    CHECK(copy_to(0x200'0000) == CUDA_SUCCESS);
    CHECK(close(0x200'0000) == CUDA_SUCCESS);
    CHECK(open(0x200'0000, mib - 2048) == CUDA_SUCCESS);  // what a block takes itself
    CHECK(copy_to(0x200'0000) == CUDA_SUCCESS);
  }
  SECTION("GPU code") {
    const std::vector<std::byte> image(mib + 1);
    const ImageHash hash = hash_image(image);
    client.send_call<wire::SendImage>(
        Opcode::sendImage,
        [&](auto in) {
          in.setHash(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(hash.data()), hash.size()));
          in.setBytes(image.size());
        },
        image);
    CHECK(client.reply() == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("logs of links") {
    client.send_call<wire::CreateLink>(Opcode::createLink, [](auto in) {
      auto options = in.initJit(2);
      options[0].setOption(CU_JIT_INFO_LOG_BUFFER);
      options[1].setOption(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
      options[1].setValue(mib);
    });
    CHECK(client.reply() == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("memory of graphs") {
    client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
      in.setAddress(0x1000'0000'0000);
      in.setBytes(4u << 20);
    });
    REQUIRE(client.reply() == CUDA_SUCCESS);
    const std::uint64_t graph = client.create_graph();
    CHECK(client.add_node(graph, [](wire::NodeParameters::Builder node) {
      auto copy = node.initCopy().initCopy();
      copy.setWidth(mib + 1);
      copy.setHeight(1);
      copy.setDepth(1);
      copy.initSource().getPlace().setPart(10);
      copy.initTarget().getPlace().setDevice(0x1000'0000'0000);
    }) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("calls behind a host function that does not end") {
    client.send_call<wire::HostFunction>(
        Opcode::hostFunction,
        [](auto in) {
          in.setStream(1);
          in.setCallback(1);
        },
        {}, false);
    const std::vector<std::byte> bytes(mib / 4);
    const auto copy = [&](bool wants_reply) {
      client.send_call<wire::CopyIn>(
          Opcode::copyIn,
          [&](wire::CopyIn::Builder in) {
            in.setStream(1);
            in.initCopy().setWidth(bytes.size());
            in.getCopy().initTarget().getPlace().setDevice(0x1000'0000'0000);
          },
          bytes, wants_reply);
    };
    for (int i = 0; i < 3; ++i) copy(false);
    copy(true);
    CHECK(client.reply() == CUDA_ERROR_OUT_OF_MEMORY);
    client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [](auto in) {
      in.setAddress(0x100'0000);
      in.setBytes(mib / 4);
      in.setMapped(true);
      in.setDevice(HandMadeClient::host_window);
    });
    CHECK(client.reply() == CUDA_ERROR_OUT_OF_MEMORY);  // one counter
  }
  // The program is told once.
  CHECK(client.printed() ==
        "fargpu: warning: the session may take 1114112 bytes of the GPU host's memory (host_bytes_max of its fargpud) "
        "and wants more: CUDA_ERROR_OUT_OF_MEMORY\n");
}

TEST_CASE("memory through which graphs copied makes room for others while the GPU is busy") {
  constexpr std::uint64_t mib = 1u << 20;
  HandMadeClient client(mib + limits::credit_bytes_min);
  client.open_context();
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(0x1000'0000'0000);
    in.setBytes(4u << 20);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  const std::uint64_t graph = client.create_graph();
  const auto add = [&](std::uint64_t part, std::uint64_t bytes) {
    return client.add_node(graph, [&](wire::NodeParameters::Builder node) {
      auto copy = node.initCopy().initCopy();
      copy.setWidth(bytes);
      copy.setHeight(1);
      copy.setDepth(1);
      copy.initSource().getPlace().setPart(part);
      copy.initTarget().getPlace().setDevice(0x1000'0000'0000);
    });
  };
  client.send_call<wire::HostFunction>(
      Opcode::hostFunction,
      [](auto in) {
        in.setStream(1);
        in.setCallback(1);
      },
      {}, false);
  REQUIRE(add(10, mib / 2) == CUDA_SUCCESS);
  client.send_call<wire::CuGraphDestroyNode>(Opcode::cuGraphDestroyNode, [](auto in) {
    in.setHNode(Handle(HandleKind::node, Handle::worker_index_first, 1).value());
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  client.await(
      [](wire::Control::Reader control) { return control.isReleased() && control.getReleased().getPart() == 10; });
  CHECK(add(11, mib) == CUDA_SUCCESS);
  CHECK(add(12, mib) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("only a stream whose making is not awaited is apart from what its context waits for") {
  HandMadeClient client;
  back_changed_memory(client);
  const std::uint64_t event = Handle(HandleKind::event, 1, 1).value(),
                      stream = Handle(HandleKind::stream, 1, 1).value();
  client.send_call<wire::HostFunction>(
      Opcode::hostFunction,
      [](auto in) {
        in.setStream(1);
        in.setCallback(1);
      },
      {}, false);
  client.send_call<wire::CuEventCreate>(
      Opcode::cuEventCreate, [&](auto in) { in.setPhEvent(event); }, {}, false);
  client.send_call<wire::CuEventRecordWithFlags>(
      Opcode::cuEventRecordWithFlags,
      [&](auto in) {
        in.setHEvent(event);
        in.setHStream(1);
      },
      {}, false);
  client.send_call<wire::CuCtxWaitEvent>(
      Opcode::cuCtxWaitEvent,
      [&](auto in) {
        in.setHCtx(Handle(HandleKind::context, 1, 1).value());
        in.setHEvent(event);
      },
      {}, false);
  const bool awaited = GENERATE(false, true);
  MessageWriter writer;
  auto make = writer.root<wire::CuStreamCreate>();
  make.setPhStream(stream);
  make.setFlags(CU_STREAM_NON_BLOCKING);
  FrameHeader header = client.call(Opcode::cuStreamCreate, awaited);
  header.detail |= call_never_held;
  client.send(header, writer.finish());
  if (awaited) REQUIRE(client.reply() == CUDA_SUCCESS);
  const auto sets = [] { return fake::FakeDriver::instance()->calls("cuMemsetD32Async"); };
  const std::size_t before = sets();
  client.send_call<wire::CuMemsetD32Async>(
      Opcode::cuMemsetD32Async,
      [&](auto in) {
        in.setDstDevice(changed_memory);
        in.setN(4);
        in.setHStream(stream);
      },
      {}, false);
  client.create_graph();  // behind it
  CHECK(sets() - before == (awaited ? 0 : 1));
}

TEST_CASE("a copy has the sides that its operation takes, and no others") {
  HandMadeClient client;
  client.open_context();
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(0x1000'0000'0000);
    in.setBytes(4u << 20);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  using Kind = CopySide::Kind;
  const CopySide device{.kind = Kind::device, .place = 0x1000'0000'0000};
  const std::uint64_t graph = client.create_graph();
  CHECK(copied<wire::CopyOut>(client, Opcode::copyOut, device, {}) == CUDA_SUCCESS);
  CHECK(copied<wire::CopyDevice>(client, Opcode::copyDevice, device, device) == CUDA_SUCCESS);
  for (const Kind kind : {Kind::frame, Kind::block, Kind::part, Kind::pull, Kind::lanes, Kind::changes}) {
    const CopySide other{.kind = kind, .place = 77};
    CAPTURE(static_cast<int>(kind));
    CHECK(copied<wire::CopyIn>(client, Opcode::copyIn, device, other) == CUDA_ERROR_INVALID_VALUE);
    CHECK(copied<wire::CopyOut>(client, Opcode::copyOut, other, device) == CUDA_ERROR_INVALID_VALUE);
    CHECK(copied<wire::CopyDevice>(client, Opcode::copyDevice, device, other) == CUDA_ERROR_INVALID_VALUE);
    CHECK(copied<wire::CopyDevice>(client, Opcode::copyDevice, other, device) == CUDA_ERROR_INVALID_VALUE);
    if (kind == Kind::part) continue;
    CHECK(client.add_node(graph, [&](wire::NodeParameters::Builder node) {
      encode({8}, other, device, node.initCopy().initCopy());
    }) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(copied<wire::CopyIn>(client, Opcode::copyIn, device, device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copied<wire::CopyOut>(client, Opcode::copyOut, device, device) == CUDA_ERROR_INVALID_VALUE);
  for (const Kind kind : {Kind::part, Kind::pull, Kind::changes})
    CHECK(copied<wire::CopyOut>(client, Opcode::copyOut, device, {.kind = kind, .place = 77}) ==
          CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("host memory that kernels see goes with its context") {
  HandMadeClient client;
  client.open_context();
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [](auto in) {
    in.setAddress(0x5000);
    in.setBytes(4096);
    in.setMapped(true);
    in.setDevice(HandMadeClient::host_window);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  const auto set = [&] {
    client.send_call<wire::CuMemsetD32Async>(Opcode::cuMemsetD32Async, [](auto in) {
      in.setDstDevice(HandMadeClient::host_window);
      in.setN(4);
      in.setHStream(1);
    });
    return client.reply();
  };
  CHECK(set() == CUDA_SUCCESS);
  client.send_call<wire::CloseContext>(Opcode::closeContext,
                                       [](auto in) { in.setContext(Handle(HandleKind::context, 1, 1).value()); });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  client.open_context();
  CHECK(set() == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a context closes while the bytes of a copy into it are still coming") {
  constexpr std::uint64_t out = 40 << 20, half = 512 << 10;  // more than passes at once
  HandMadeClient client;
  client.open_context();
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(0x1000'0000'0000);
    in.setBytes(out);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  const std::size_t copied = fake::FakeDriver::instance()->calls("cuMemcpyDtoHAsync_v2");
  FrameHeader header;
  {
    const test::Paused paused;
    client.send_call<wire::CopyOut>(Opcode::copyOut, [](wire::CopyOut::Builder in) {
      in.setStream(1);
      in.initCopy().setWidth(out);
      in.getCopy().initSource().getPlace().setDevice(0x1000'0000'0000);
    });
    while (fake::FakeDriver::instance()->calls("cuMemcpyDtoHAsync_v2") == copied) std::this_thread::yield();
    // This waits for the stream, and the frame behind it has begun by then.
    client.send_call<wire::CloseContext>(Opcode::closeContext,
                                         [](auto in) { in.setContext(Handle(HandleKind::context, 1, 1).value()); });
    header = client.call(Opcode::copyIn);
    MessageWriter writer;
    auto in = writer.root<wire::CopyIn>();
    in.setStream(1);
    in.initCopy().setWidth(2 * half);
    in.getCopy().initTarget().getPlace().setDevice(0x1000'0000'0000);
    const auto message = writer.finish();
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    header.bulk_bytes = 2 * half;
    const std::vector<std::byte> bytes(half, std::byte{1});
    const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(&header, 1)), message, bytes};
    send_all(client.channel(), pieces);
  }
  const CUresult first = client.reply(),
                 second = client.reply();  // of the copy out, which is cut off or not, and of the close
  CHECK((first == CUDA_SUCCESS || second == CUDA_SUCCESS));
  const std::vector<std::byte> bytes(half, std::byte{2});
  const std::span<const std::byte> rest[] = {bytes};
  send_all(client.channel(), rest);
  CHECK(client.reply() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  client.open_context();
}

TEST_CASE("a worker refuses parts of graphs that cannot be, and gives none to the GPU") {
  HandMadeClient client;
  client.open_context();
  const std::uint64_t graph = client.create_graph();
  const auto add = [&](auto&& fill) { return client.add_node(graph, fill); };
  const auto copy = [&](std::uint64_t width, std::uint64_t height, std::uint64_t depth, std::uint64_t part) {
    return add([&](wire::NodeParameters::Builder node) {
      auto copy = node.initCopy().initCopy();
      copy.setWidth(width);
      copy.setHeight(height);
      copy.setDepth(depth);
      copy.initSource().getPlace().setPart(part);
      copy.initTarget().getPlace().setDevice(0x1000'0000'0000);
    });
  };
  CHECK(copy(4, 1, 1, 10) == CUDA_ERROR_INVALID_VALUE);  // no memory of the session there
  CHECK(copy(0, 1, 1, 11) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(1ull << 40, 1ull << 40, 1ull << 48, 12) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(~0ull, ~0ull, ~0ull, 13) == CUDA_ERROR_INVALID_VALUE);
  CHECK(add([](wire::NodeParameters::Builder node) { node.setEventRecord(12345); }) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(add([](wire::NodeParameters::Builder node) { node.setChild(12345); }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(add([](wire::NodeParameters::Builder node) {
          auto operation = node.initMemory().initOperations(1)[0];
          operation.setOperation(CU_STREAM_MEM_OP_WRITE_VALUE_64);
          operation.setAddress(~0ull - 3);
        }) == CUDA_ERROR_INVALID_VALUE);
  // A function on a stream that is not captured, and a launch of what was never instantiated.
  client.send_call<wire::HostFunction>(Opcode::hostFunction, [](auto in) {
    in.setStream(1);
    in.setPart(20);
  });
  CHECK(client.reply() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  client.send_call<wire::LaunchGraph>(Opcode::launchGraph, [](auto in) {
    in.setExec(Handle(HandleKind::exec, Handle::worker_index_first, 1).value());
    in.setStream(1);
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  // An executable graph with a function goes to the driver in pieces only.
  CHECK(add([](wire::NodeParameters::Builder node) { node.setHost(21); }) == CUDA_SUCCESS);
  client.send_call<wire::InstantiateGraph>(Opcode::instantiateGraph, [&](auto in) { in.setGraph(graph); });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  client.send_call<wire::CuGraphLaunch>(Opcode::cuGraphLaunch, [](auto in) {
    in.setHGraph(Handle(HandleKind::exec, Handle::worker_index_first, 1).value());
    in.setHStream(1);
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  CHECK(fake::FakeDriver::instance()->calls("cuGraphLaunch") == 0);
}

TEST_CASE("a worker ends the session of a client that breaks the protocol") {
  HandMadeClient client;
  client.open_context();
  std::string wanted;
  SECTION("a message that is none") {
    const std::vector<std::byte> garbage(64, std::byte{0xFF});
    client.send(client.call(Opcode::cuStreamSynchronize), garbage);
  }
  SECTION("too long a message") {
    FrameHeader header = client.call(Opcode::fence);
    header.message_bytes = 0x7ffffff8;
    client.send(header);
    wanted = "message of";
  }
  SECTION("too many bulk bytes") {
    FrameHeader header = client.call(Opcode::copyIn);
    header.bulk_bytes = 0xffffffff;
    client.send(header);
    wanted = "bulk bytes";
  }
  SECTION("an unknown kind of frame") {
    FrameHeader header = client.call(Opcode::fence);
    header.kind = static_cast<FrameKind>(77);
    client.send(header);
    wanted = "unknown kind";
  }
  SECTION("a frame that only workers send") {
    FrameHeader header = client.call(Opcode::fence);
    header.kind = FrameKind::reply;
    client.send(header);
    wanted = "kind that a client does not send";
  }
  SECTION("frames out of their order") {
    FrameHeader header = client.call(Opcode::fence);
    header.sequence += 5;
    client.send(header);
  }
  SECTION("a copy with too few bytes") {
    const std::vector<std::byte> bytes(10);
    client.send_call<wire::CopyIn>(
        Opcode::copyIn,
        [](wire::CopyIn::Builder in) {
          in.setStream(1);
          in.initCopy().setWidth(20);
          in.getCopy().initTarget().getPlace().setDevice(0x1000'0000'0000);
        },
        bytes);
    // Refused already for its address, or for its bytes: a copy must never read past them.
    CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
    return;
  }
  SECTION("an answer to a question that was not asked") {
    MessageWriter writer;
    writer.root<wire::Control>().initPulled().setPull(99);
    FrameHeader header = client.call(Opcode::fence);
    header.kind = FrameKind::control;
    header.opcode = 0;
    client.send(header, writer.finish());
    wanted = "not asked for";
  }
  SECTION("a part of a graph by a number that is taken") {
    for (int i = 0; i < 2; ++i)
      client.send_call<wire::CreateUserObject>(Opcode::createUserObject, [](auto in) {
        in.setPart(7);
        in.setReferences(1);
      });
    wanted = "not free";
  }
  SECTION("a handle that is taken") {
    for (int i = 0; i < 2; ++i) {
      client.send_call<wire::CuStreamCreate>(Opcode::cuStreamCreate,
                                             [](auto in) { in.setPhStream(Handle(HandleKind::stream, 3, 1).value()); });
    }
    wanted = "not free";
  }
  SECTION("a handle of another kind for a function") {
    client.send_call<wire::KernelFunction>(Opcode::kernelFunction,
                                           [](auto in) { in.setFunction(Handle(HandleKind::kernel, 3, 1).value()); });
    wanted = "not free";
  }
  const std::string why = client.worker_end();
  INFO(why);
  CHECK(!why.empty());
  CHECK(why.find(wanted) != std::string::npos);
}

TEST_CASE("a client releases references that it does not own") {
  HandMadeClient client;
  fake::FakeDriver& driver = fake::FakeDriver::instance();
  client.open_context();
  const std::uint64_t graph = client.create_graph();
  const auto create = [&](std::uint64_t part) {
    client.send_call<wire::CreateUserObject>(Opcode::createUserObject, [&](auto in) {
      in.setPart(part);
      in.setReferences(1);
    });
    REQUIRE(client.reply() == CUDA_SUCCESS);
  };
  create(7);
  create(8);
  const std::uint64_t object = Handle(HandleKind::userobject, Handle::worker_index_first, 1).value(),
                      other = Handle(HandleKind::userobject, Handle::worker_index_first + 1, 1).value();
  // Nobody waits for any of it, so that all is served before the worker has heard of the object's end.
  const auto release = [&](std::uint64_t which, unsigned count) {
    client.send_call<wire::CuUserObjectRelease>(
        Opcode::cuUserObjectRelease, [&](auto in) { in.setObject(which), in.setCount(count); }, {}, false);
  };
  const unsigned before = driver->calls("cuUserObjectRelease"), of_graphs = driver->calls("cuGraphReleaseUserObject");
  for (int i = 0; i < 50; ++i) {
    release(object, 1);
    release(object, ~0u);
    client.send_call<wire::CuUserObjectRetain>(
        Opcode::cuUserObjectRetain, [&](auto in) { in.setObject(object), in.setCount(1); }, {}, false);
    client.send_call<wire::CuGraphRetainUserObject>(
        Opcode::cuGraphRetainUserObject,
        [&](auto in) { in.setGraph(graph), in.setObject(object), in.setCount(1), in.setFlags(1); }, {}, false);
    client.send_call<wire::CuGraphReleaseUserObject>(
        Opcode::cuGraphReleaseUserObject, [&](auto in) { in.setGraph(graph), in.setObject(other), in.setCount(1); }, {},
        false);
    client.send_call<wire::CuGraphReleaseUserObject>(
        Opcode::cuGraphReleaseUserObject, [&](auto in) { in.setGraph(object), in.setObject(graph), in.setCount(1); },
        {}, false);
  }
  client.send_call<wire::CuUserObjectRetain>(Opcode::cuUserObjectRetain,
                                             [&](auto in) { in.setObject(object), in.setCount(1); });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::CuUserObjectRetain>(Opcode::cuUserObjectRetain,
                                             [&](auto in) { in.setObject(other), in.setCount(1); });
  CHECK(client.reply() == CUDA_SUCCESS);
  CHECK(driver->calls("cuUserObjectRelease") == before + 1);
  CHECK(driver->calls("cuGraphReleaseUserObject") == of_graphs);
}

namespace {

/// A client with a hand-made worker before it.
class HandMadeWorker {
 public:
  HandMadeWorker() {
    auto [near, far] = make_memory_channel();
    channel_ = std::move(far);
    std::thread worker([this] { answer_attach(); });
    session_ = client::attach(std::move(near), {}, test::Remote::default_config(), "a hand-made worker").release();
    worker.join();
    client::process().adopt(session_);
  }
  ~HandMadeWorker() {
    client::Thread& thread = client::Thread::current();
    thread.contexts().clear();
    thread.default_streams.clear();
    while (thread.take_late_error() != CUDA_SUCCESS) {}
    client::process().give_up();
    client::release_window(session_->terms.device_window);
    client::release_window(session_->terms.host_window);
  }

  void send(FrameHeader header, std::span<const std::byte> message = {}) {
    header.sequence = ++sequence_;
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(&header, 1)), message};
    send_until_cut(*channel_, pieces);
  }
  template <class Fill>
  void control(Fill&& fill) {
    MessageWriter writer;
    fill(writer.root<wire::Control>());
    FrameHeader header;
    header.kind = FrameKind::control;
    send(header, writer.finish());
  }
  Channel& channel() { return *channel_; }

  /// Answers the next call of this kind that waits for an answer, after what `ahead` sends; other such calls get an
  /// empty answer.
  template <class Reply, class Fill>
  void answer(Opcode opcode, Fill&& fill, const std::function<void(FrameHeader)>& ahead = {}) {
    for (;;) {
      const FrameHeader call = next().first;
      if (call.kind != FrameKind::call || !(call.detail & call_wants_reply)) continue;
      FrameHeader header;
      header.kind = FrameKind::reply;
      header.opcode = call.opcode;
      header.subject = call.sequence;
      const bool wanted = call.opcode == static_cast<std::uint16_t>(opcode);
      MessageWriter writer;
      if (wanted) {
        if (ahead) ahead(header);
        fill(writer.root<Reply>());
      }
      send(header, writer.finish());
      if (wanted) return;
    }
  }
  /// Waits until the client says that it has done what it was called for.
  void await_done(std::uint64_t callback) {
    for (;;) {
      const auto [header, message] = next();
      if (header.kind != FrameKind::control) continue;
      MessageReader reader(message);
      const auto control = reader.root<wire::Control>();
      if (control.isCallbackDone() && control.getCallbackDone().getCallback() == callback) return;
    }
  }
  /// Waits for the answer to a question for memory; whether all came.
  bool await_pulled(std::uint64_t pull) {
    for (;;) {
      const auto [header, message] = next();
      if (header.kind != FrameKind::control) continue;
      MessageReader reader(message);
      const auto control = reader.root<wire::Control>();
      if (control.isPulled() && control.getPulled().getPull() == pull) return !control.getPulled().getGone();
    }
  }
  /// ClientLanes bytes of the answer to a call, of whose reply this is the header.
  void data(FrameHeader header, std::span<const std::byte> bytes) {
    header.kind = FrameKind::data;
    header.sequence = ++sequence_;
    header.bulk_bytes = static_cast<std::uint32_t>(bytes.size());
    const std::byte zeros[8] = {};
    const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(&header, 1)), bytes,
                                                 std::span(zeros).first(padded(bytes.size()) - bytes.size())};
    send_until_cut(*channel_, pieces);
  }

 private:
  void read(std::span<std::byte> into) {
    while (!into.empty()) {
      const std::size_t n = channel_->receive_some(into);
      into = into.subspan(n);
      if (n == 0) channel_->wait({.readable = true}, std::chrono::seconds(10));
    }
  }
  /// A frame of the client and its message.
  std::pair<FrameHeader, std::vector<std::byte>> next() {
    FrameHeader header;
    read(std::as_writable_bytes(std::span(&header, 1)));
    std::vector<std::byte> message(header.message_bytes), bulk(padded(header.bulk_bytes));
    read(message);
    read(bulk);
    return {header, std::move(message)};
  }
  void answer_attach() {
    const auto message = receive_control(*channel_, limits::lease_timeout);
    MessageReader reader(message);
    const auto attach = reader.root<wire::Control>().getAttach();
    send_control(*channel_, 1, [&](wire::Control::Builder control) {
      auto answer = control.initAttachAnswer();
      answer.setProtocolVersion(wire::PROTOCOL_VERSION);
      answer.setDeviceWindow(attach.getDeviceWindows()[0]);
      answer.setHostWindow(attach.getHostWindows()[0]);
      answer.setCreditBytes(limits::credit_bytes);
      auto facts = answer.initFacts();
      facts.setDriverVersion(13000);
      auto device = facts.initDevices(1)[0];
      device.setName("hand-made");
      device.setMemoryBytes(1 << 30);
      auto opcodes = answer.initOpcodes(opcode_max / 8 + 1);
      std::memset(opcodes.begin(), 0xff, opcodes.size());
    });
  }

  std::unique_ptr<Channel> channel_;
  client::Session* session_ = nullptr;
  std::uint32_t sequence_ = 1;
};

}  // namespace

TEST_CASE("a client loses a session whose worker breaks the protocol, and says so to every call") {
  HandMadeWorker worker;
  CUcontext context = nullptr;
  std::jthread speaker;
  SECTION("a reply for which nobody waits") {
    speaker = std::jthread([&] {
      FrameHeader header;
      header.kind = FrameKind::reply;
      header.subject = 4711;
      worker.send(header);
    });
  }
  SECTION("bytes for memory that is not pinned") {
    static unsigned char victim = 1;
    speaker = std::jthread([&] {
      worker.control([](wire::Control::Builder control) {
        auto pull = control.initPull();
        pull.setPull(1);
        pull.setAddress(reinterpret_cast<std::uint64_t>(&victim));
        pull.setBytes(1);
      });
    });
  }
  SECTION("a function that is part of no graph") {
    speaker = std::jthread([&] {
      worker.control([](wire::Control::Builder control) {
        auto callback = control.initCallback();
        callback.setCallback(1);
        callback.setPart(5);
      });
    });
  }
  SECTION("bytes for memory that is part of no graph") {
    speaker = std::jthread([&] {
      worker.control([](wire::Control::Builder control) {
        auto pull = control.initPull();
        pull.setPull(1);
        pull.setPart(5);
        pull.setBytes(1);
      });
    });
  }
  static unsigned char victim[4];
  client::Session& session = client::session_of(client::Thread::current());
  const CopyShape victim_shape{sizeof victim};
  client::GraphParts::Memory memory{CopySide::packed_at(victim, victim_shape), victim_shape};
  const auto deliver = [&](std::uint64_t part, std::uint64_t offset) {
    speaker = std::jthread([&worker, part, offset] {
      worker.control([&](wire::Control::Builder control) {
        auto deliver = control.initDeliver();
        deliver.setPart(part);
        deliver.setAddress(offset);
      });
    });
  };
  SECTION("bytes behind the end of memory that is part of a graph") {
    session.graphs.launched();
    deliver(session.graph_parts.add(memory), 5);
  }
  SECTION("bytes for memory that a graph only reads") {
    session.graphs.launched();
    memory.source = true;
    deliver(session.graph_parts.add(memory), 0);
  }
  SECTION("bytes for memory of a graph that is not launched") { deliver(session.graph_parts.add(memory), 0); }
  SECTION("bytes of memory that a graph only writes") {
    const std::uint64_t part = session.graph_parts.add(memory);
    speaker = std::jthread([&worker, part] {
      worker.control([part](wire::Control::Builder control) {
        auto pull = control.initPull();
        pull.setPull(1);
        pull.setPart(part);
        pull.setBytes(4);
      });
    });
  }
  const auto call = [&](bool destructor, int times) {
    const std::uint64_t part = session.graph_parts.add(
        client::GraphParts::Function{[](void* n) { ++*static_cast<unsigned char*>(n); }, victim, destructor});
    speaker = std::jthread([&worker, part, times] {
      for (int i = 1; i <= times; ++i) {
        worker.control([&](wire::Control::Builder control) {
          auto callback = control.initCallback();
          callback.setCallback(static_cast<std::uint64_t>(i));
          callback.setPart(part);
        });
      }
    });
  };
  SECTION("a function of a graph that is not launched") {
    victim[0] = 0;
    call(false, 1);
  }
  SECTION("a destructor, twice") { call(true, 2); }
  SECTION("a frame that only clients send") {
    speaker = std::jthread([&] {
      FrameHeader header;
      header.kind = FrameKind::call;
      worker.send(header);
    });
  }
  SECTION("garbage") {
    speaker = std::jthread([&] {
      const std::vector<std::byte> garbage(4096, std::byte{0xEE});
      const std::span<const std::byte> pieces[] = {garbage};
      send_until_cut(worker.channel(), pieces);
    });
  }
  SECTION("a goodbye") {
    speaker = std::jthread([&] {
      worker.control([](wire::Control::Builder control) { control.initGoodbye().setText("the host goes down"); });
    });
  }
  SECTION("silence and the end") {
    speaker = std::jthread([&] { worker.channel().close(); });
  }
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  speaker.join();
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  int count = 0;
  CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(cuInit(0) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a client reads no more of what a worker linked than there is") {
  HandMadeWorker worker;
  std::vector<std::byte> linked;
  const auto put = [&](std::size_t offset, auto value) {
    linked.resize(std::max(linked.size(), offset + sizeof(value)));
    std::memcpy(linked.data() + offset, &value, sizeof(value));
  };
  CUresult expected = CUDA_ERROR_DEVICE_UNAVAILABLE;
  std::uint64_t claimed = 0;
  static const std::uint64_t secret = 0;
  SECTION("a wrapper, which points anywhere") {
    put(0, std::uint32_t{0x466243B1});
    put(4, std::uint32_t{1});
    put(8, &secret);
    put(16, std::uint64_t{0});
  }
  SECTION("a container that is longer") {
    put(0, std::uint32_t{0xBA55ED50});
    put(4, std::uint16_t{1});
    put(6, std::uint16_t{16});
    put(8, std::uint64_t{1});
  }
  SECTION("text without an end") {
    for (const char c : std::string(".version 8.0")) linked.push_back(static_cast<std::byte>(c));
    expected = CUDA_SUCCESS;
  }
  SECTION("more than there can be") { claimed = limits::image_bytes_max + 1; }
  SECTION("less than was said") {
    put(0, std::uint64_t{0});
    claimed = limits::image_bytes_max;
  }
  std::jthread speaker([&] {
    worker.answer<wire::CreateLinkReply>(Opcode::createLink, [](auto out) {
      out.setLink(Handle(HandleKind::link, Handle::worker_index_first, 1).value());
    });
    worker.answer<wire::LinkReply>(Opcode::completeLink, [&](wire::LinkReply::Builder out) {
      out.setKnown(true);
      out.setLinkedBytes(claimed ? claimed : linked.size());
    });
    if (claimed > limits::image_bytes_max) return;
    worker.answer<wire::LinkReply>(
        Opcode::fetchLinked, [](auto) {}, [&](FrameHeader reply) { worker.data(reply, linked); });
  });
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUlinkState state = nullptr;
  REQUIRE(cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
  void* image = nullptr;
  std::size_t bytes = 0;
  CHECK(cuLinkComplete(state, &image, &bytes) == expected);
  speaker.join();
  if (expected != CUDA_SUCCESS) return;
  CHECK(bytes == linked.size());
  CHECK(std::memcmp(image, linked.data(), bytes) == 0);
  CHECK(static_cast<const char*>(image)[bytes] == '\0');
}

TEST_CASE("a client takes no more parameters of a kernel from a worker than a launch can have") {
  HandMadeWorker worker;
  std::vector<std::pair<unsigned, unsigned>> parameters;
  SECTION("that are nothing") { parameters.assign(100, {8, 0}); }
  SECTION("that lie in each other") { parameters.assign(100, {0, 8}); }
  SECTION("that end too far away") { parameters.assign(100, {limits::kernel_parameter_bytes_max - 7, 8}); }
  parameters.insert(parameters.begin(), {0, 8});
  std::jthread speaker([&] {
    worker.answer<wire::FunctionReply>(Opcode::findFunction, [&](wire::FunctionReply::Builder out) {
      out.setFunction(Handle(HandleKind::function, Handle::worker_index_first, 1).value());
      auto list = out.initParameters(static_cast<unsigned>(parameters.size()));
      for (unsigned i = 0; i < list.size(); ++i) {
        list[i].setOffset(parameters[i].first);
        list[i].setBytes(parameters[i].second);
      }
    });
  });
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  REQUIRE(cuModuleGetFunction(
              &function, reinterpret_cast<CUmodule>(Handle(HandleKind::module, Handle::worker_index_first, 1).value()),
              "kernel") == CUDA_SUCCESS);
  speaker.join();
  const client::Function* const known = client::session_of(client::Thread::current()).functions.find(function);
  REQUIRE(known);
  CHECK(known->parameters.size() == 1);
}

TEST_CASE("a kernel that a worker calls its own function ends the session") {
  HandMadeWorker worker;
  std::jthread speaker([&] {
    for (int asked = 0; asked < 2; ++asked) {
      worker.answer<wire::FunctionReply>(Opcode::findFunction, [&](wire::FunctionReply::Builder out) {
        out.setFunction(Handle(HandleKind::kernel, Handle::worker_index_first, 1).value());
      });
    }
  });
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  const auto library = reinterpret_cast<CUlibrary>(Handle(HandleKind::library, Handle::worker_index_first, 1).value());
  REQUIRE(cuLibraryGetKernel(&kernel, library, "kernel") == CUDA_SUCCESS);
  CUfunction function = nullptr;
  CHECK(cuKernelGetFunction(&function, kernel) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

namespace {

/// What a worker says of a graph's text: a part, and how long all of it is.
struct TextPart {
  std::size_t bytes;
  std::uint64_t of;
};

CUresult print_graph(HandMadeWorker& worker, const char* path, const std::vector<TextPart>& parts,
                     const std::function<void()>& at_end = {}) {
  const std::jthread speaker([&] {
    try {
      for (const TextPart& part : parts) {
        worker.answer<wire::PrintGraphReply>(Opcode::printGraph, [&](wire::PrintGraphReply::Builder out) {
          std::memset(out.initText(static_cast<unsigned>(part.bytes)).begin(),
                      'a' + static_cast<int>(&part - parts.data()), part.bytes);
          out.setBytes(part.of);
          if (at_end && &part == &parts.back()) at_end();
        });
      }
    } catch (const ChannelClosed&) {  // it does not ask for more
    }
  });
  return cuGraphDebugDotPrint(
      reinterpret_cast<CUgraph>(Handle(HandleKind::graph, Handle::worker_index_first, 1).value()), path, 0);
}

}  // namespace

TEST_CASE("a graph's text without a bound, or in other parts than were asked for, ends the session") {
  HandMadeWorker worker;
  constexpr std::uint64_t whole = limits::bulk_bytes_max;
  std::vector<TextPart> parts;
  SECTION("no bound") { parts = {{whole, ~std::uint64_t{0}}}; }
  SECTION("more than there can be") { parts = {{whole, (256u << 20) + 1}}; }
  SECTION("a byte at a time") { parts = {{1, 2}, {1, 2}}; }
  SECTION("more than it is") { parts = {{2, 1}}; }
  SECTION("nothing of it") { parts = {{0, 1}}; }
  SECTION("it becomes longer and comes byte by byte") { parts = {{whole, whole + 1}, {1, whole + 2}}; }
  CHECK(print_graph(worker, "/dev/null", parts) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a long text of a graph arrives whole, and takes memory for a part of it only") {
  HandMadeWorker worker;
  constexpr std::uint64_t part = limits::bulk_bytes_max, bytes = (64u << 20) + 5;
  std::vector<TextPart> parts(bytes / part, {part, bytes});
  parts.push_back({5, bytes});
  const auto path =
      std::filesystem::temp_directory_path() / ("fargpu_long_graph_" + std::to_string(::getpid()) + ".dot");
  const auto taken = [] {
    return ::mallinfo2().hblkhd + ::mallinfo2().uordblks;
  };  // nothing under a sanitizer, whose memory is its own
  const std::size_t before = taken();
  std::size_t at_end = before;
  CHECK(print_graph(worker, path.c_str(), parts, [&] { at_end = taken(); }) == CUDA_SUCCESS);
  CHECK(at_end < before + 8 * part);
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
  REQUIRE(text.size() == bytes);
  bool right = true;
  for (std::size_t i = 0; i < bytes; ++i) right = right && text[i] == static_cast<char>('a' + i / part);
  CHECK(right);
}

TEST_CASE(
    "a stream's value goes to memory of the program only while that is there, whenever the worker says that the stream "
    "is done") {
  HandMadeWorker worker;
  static unsigned values[2];
  values[0] = values[1] = 1;
  CUcontext context = nullptr;
  const auto answered = [&](Opcode last, auto&& calls) {  // the worker says of everything that it is done
    std::jthread speaker([&] { worker.answer<wire::CuCtxSynchronize>(last, [](auto) {}); });
    calls();
  };
  const auto unregister = [&] {
    answered(Opcode::cuCtxSynchronize, [] { REQUIRE(cuMemHostUnregister(values) == CUDA_SUCCESS); });
  };
  const auto call_the_write = [&] {
    worker.control([](wire::Control::Builder control) { control.initCallback().setCallback(1); });
    worker.await_done(1);
  };
  answered(Opcode::openContext, [&] { REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS); });
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  REQUIRE(cuMemHostRegister_v2(values, sizeof(values), 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamWriteValue32_v2(nullptr, reinterpret_cast<CUdeviceptr>(&values[1]), 7, 0) == CUDA_SUCCESS);
  unsigned expected = 1;
  SECTION("it is there") {
    call_the_write();
    expected = 7;
    unregister();
  }
  SECTION("it was given back") {
    unregister();
    call_the_write();
  }
  SECTION("less is there since") {
    unregister();
    REQUIRE(cuMemHostRegister_v2(values, sizeof(values[0]) + 2, 0) == CUDA_SUCCESS);
    call_the_write();
  }
  CHECK(values[0] == 1);
  CHECK(values[1] == expected);
}

TEST_CASE("a worker hears of pinned memory that the program has unmapped that it is gone, and the program lives") {
  HandMadeWorker worker;
  CUcontext context = nullptr;
  {
    std::jthread speaker([&] { worker.answer<wire::CuCtxSynchronize>(Opcode::openContext, [](auto) {}); });
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  }
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  constexpr std::size_t page = 4096, bytes = 2 * page;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  std::memset(memory, 5, bytes);
  REQUIRE(cuMemHostRegister_v2(memory, bytes, 0) == CUDA_SUCCESS);
  const auto pull = [&](std::uint64_t number) {
    worker.control([&](wire::Control::Builder control) {
      auto wanted = control.initPull();
      wanted.setPull(number);
      wanted.setAddress(reinterpret_cast<std::uint64_t>(memory));
      wanted.setBytes(bytes);
    });
    return worker.await_pulled(number);
  };
  CHECK(pull(1));
  REQUIRE(::munmap(static_cast<std::byte*>(memory) + page, page) == 0);
  CHECK_FALSE(pull(2));
  ::munmap(memory, page);
}

TEST_CASE("a worker that has gone when it gives back memory of a graph ends the session, not the program") {
  HandMadeWorker worker;
  client::Session& session = client::session_of(client::Thread::current());
  std::jthread speaker([&] {
    worker.answer<wire::AddNodeReply>(Opcode::addNode, [](auto out) {
      out.setNode(Handle(HandleKind::node, Handle::worker_index_first, 1).value());
    });
  });
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(memory, 0, 4096, nullptr) == CUDA_SUCCESS);  // so that something is under way
  const auto graph = reinterpret_cast<CUgraph>(Handle(HandleKind::graph, Handle::worker_index_first, 1).value());
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
  allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocation.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  allocation.bytesize = 4096;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &allocation) == CUDA_SUCCESS);
  speaker.join();
  constexpr std::uint64_t part = 1;
  REQUIRE(session.graph_parts.allocation(part));
  test::Gate gate;
  session.answers.run([&] { test::Gate::pass(&gate); });
  gate.wait_entered();
  worker.control([](wire::Control::Builder control) { control.initReleased().setPart(part); });
  while (session.graph_parts.allocation(part)) std::this_thread::yield();
  worker.channel().close();
  while (client::life() == client::Life::ready) std::this_thread::yield();
  gate.open();
  std::promise<void> passed;
  session.answers.run([&] { passed.set_value(); });
  passed.get_future().wait();
  CHECK(cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a broken connection ends waits at once and nothing hangs") {
  test::RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 0, 100, nullptr) == CUDA_SUCCESS);
  std::vector<std::thread> waiters;
  std::atomic<int> ready{0}, told{0};
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] {
      const CUresult current = cuCtxSetCurrent(remote.context);
      ++ready;
      if (current == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE) ++told;
    });
  }
  while (ready < 4 || remote.driver->calls("cuMemsetD8Async") == 0) std::this_thread::yield();
  remote.cut();
  for (std::thread& waiter : waiters) waiter.join();
  CHECK(told == 4);
  CHECK(cuMemcpyDtoH_v2(&memory, memory, 8) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  remote.driver->pause(false);
  remote.worker_end();
}
