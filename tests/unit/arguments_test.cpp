// A kernel's arguments, gathered into one block.

#include <catch2/catch.hpp>
#include <thread>

#include "client/code/launch_arguments.h"
#include "client/code/launch_class.h"
#include "frames.h"
#include "protocol/message.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

namespace {

// (u8, u64, u16, 12 bytes): gaps between the first two and before the last.
void mixed(Function& function) {
  function.parameters = {{0, 1}, {8, 8}, {16, 2}, {20, 12}};
  function.parameter_bytes = 32;
  function.gaps = true;
}

struct Arguments {
  std::uint8_t a = 0x11;
  std::uint64_t b = 0x2222222222222222;
  std::uint16_t c = 0x3333;
  std::array<std::uint8_t, 12> d;
  std::array<void*, 4> pointers{&a, &b, &c, &d};
  Arguments() { d.fill(0x44); }
};

}  // namespace

TEST_CASE("arguments lie where the kernel's metadata says, with zeros between them") {
  Function function;
  mixed(function);
  Arguments arguments;
  std::span<const std::byte> block;
  // An earlier launch must not show through the gaps.
  Function wide;
  wide.parameters = {{0, 256}};
  wide.parameter_bytes = 256;
  Bytes noise(256, std::byte{0xEE});
  void* pointer = noise.data();
  REQUIRE(gather_arguments(wide, &pointer, nullptr, block) == CUDA_SUCCESS);
  REQUIRE(gather_arguments(function, arguments.pointers.data(), nullptr, block) == CUDA_SUCCESS);
  Bytes expected(32);
  expected[0] = std::byte{0x11};
  std::fill_n(expected.begin() + 8, 8, std::byte{0x22});
  std::fill_n(expected.begin() + 16, 2, std::byte{0x33});
  std::fill_n(expected.begin() + 20, 12, std::byte{0x44});
  CHECK(Bytes(block.begin(), block.end()) == expected);
}

TEST_CASE("kernels without parameters need no arguments") {
  Function none;
  std::span<const std::byte> block;
  void* pointers[1] = {nullptr};
  CHECK(gather_arguments(none, nullptr, nullptr, block) == CUDA_SUCCESS);
  CHECK(block.empty());
  CHECK(gather_arguments(none, pointers, nullptr, block) == CUDA_SUCCESS);
  CHECK(block.empty());
  Function some;
  mixed(some);
  CHECK(gather_arguments(some, nullptr, nullptr, block) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a block of the program's own is passed on as it is") {
  Function function;
  mixed(function);
  Bytes own = pattern(32);
  std::size_t bytes = own.size();
  std::span<const std::byte> block;
  SECTION("pointer first") {
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, own.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    REQUIRE(gather_arguments(function, nullptr, extra, block) == CUDA_SUCCESS);
  }
  SECTION("size first") {
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_BUFFER_POINTER, own.data(),
                     CU_LAUNCH_PARAM_END};
    REQUIRE(gather_arguments(function, nullptr, extra, block) == CUDA_SUCCESS);
  }
  CHECK(block.data() == own.data());
  CHECK(block.size() == 32);
}

TEST_CASE("contradictory and incomplete arguments are refused") {
  Function function;
  mixed(function);
  Arguments arguments;
  Bytes own = pattern(limits::kernel_parameter_bytes_max + 1);
  std::size_t bytes = 32;
  std::span<const std::byte> block;
  const auto refused = [&](std::initializer_list<void*> items, void** params = nullptr) {
    std::vector<void*> extra(items);
    return gather_arguments(function, params, extra.data(), block) == CUDA_ERROR_INVALID_VALUE;
  };
  void* const pointer = CU_LAUNCH_PARAM_BUFFER_POINTER;
  void* const size = CU_LAUNCH_PARAM_BUFFER_SIZE;
  void* const end = CU_LAUNCH_PARAM_END;
  CHECK(refused({pointer, own.data(), size, &bytes, end}, arguments.pointers.data()));
  CHECK(refused({end}));
  CHECK(refused({pointer, own.data(), end}));
  CHECK(refused({size, &bytes, end}));
  CHECK(refused({pointer, nullptr, size, &bytes, end}));
  CHECK(refused({pointer, own.data(), size, nullptr, end}));
  CHECK(refused({reinterpret_cast<void*>(std::uintptr_t{7}), own.data(), end}));
  bytes = limits::kernel_parameter_bytes_max + 1;
  CHECK(refused({pointer, own.data(), size, &bytes, end}));
  bytes = limits::kernel_parameter_bytes_max;
  CHECK_FALSE(refused({pointer, own.data(), size, &bytes, end}));
}

TEST_CASE("each thread gathers into a block of its own") {
  Function function;
  mixed(function);
  Arguments here, there;
  there.b = 5;
  std::span<const std::byte> block, other;
  REQUIRE(gather_arguments(function, here.pointers.data(), nullptr, block) == CUDA_SUCCESS);
  const Bytes before(block.begin(), block.end());
  std::thread([&] { gather_arguments(function, there.pointers.data(), nullptr, other); }).join();
  CHECK(Bytes(block.begin(), block.end()) == before);
  CHECK(other.data() != block.data());
}

TEST_CASE("a worker's layout beyond CUDA's limit is cut off") {
  MessageWriter writer;
  auto reply = writer.root<wire::FunctionReply>();
  const Handle handle(HandleKind::function, Handle::worker_index_first, 1);
  reply.setFunction(handle.value());
  auto parameters = reply.initParameters(3);
  parameters[0].setBytes(8);
  parameters[1].setOffset(limits::kernel_parameter_bytes_max - 4);
  parameters[1].setBytes(4);
  parameters[2].setOffset(0xFFFFFFFF);
  parameters[2].setBytes(0xFFFFFFFF);
  MessageReader reader(writer.finish());
  Functions functions;
  Function* const function = functions.learn(reader.root<wire::FunctionReply>(), nullptr);
  REQUIRE(function);
  CHECK(functions.find(handle_cast<CUfunction>(handle)) == function);
  CHECK(function->parameters.size() == 2);
  CHECK(function->parameter_bytes == limits::kernel_parameter_bytes_max);
}

TEST_CASE("launch classes differ by what they were told, in its order") {
  const auto value = [](std::initializer_list<std::uint64_t> words) {
    LaunchClass launch;
    for (const std::uint64_t word : words) launch.add(word);
    return launch.value();
  };
  CHECK(value({1, 2, 3}) == value({1, 2, 3}));
  CHECK(value({1, 2, 3}) != value({1, 3, 2}));
  CHECK(value({1, 2, 3}) != value({1, 2}));
  CHECK(value({0}) != value({}));
  CHECK(value({0, 0}) != value({0}));
  LaunchClass bytes, words;
  const Bytes five = pattern(5);
  bytes.add(std::span<const std::byte>(five));
  std::uint64_t word = 0;
  std::memcpy(&word, five.data(), 5);
  words.add(word);
  CHECK(bytes.value() == words.value());
}

TEST_CASE("that a launch was accepted is not kept past a change that came meanwhile") {
  Function function;
  const std::uint64_t before = function.changes_now();
  {
    const std::lock_guard lock(function.mutex);
    function.changed();
  }
  function.learn_launch(7, before);
  CHECK_FALSE(function.launch_known(7));
  function.learn_launch(7, function.changes_now());
  CHECK(function.launch_known(7));
}
