// Kernels whose code has operations of the scope of the whole system, of what nvcc makes for each architecture.

#include "server/worker/code/system_scope.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "frames.h"

using namespace fargpu;
using namespace fargpu::server;
using namespace fargpu::test;
namespace fs = std::filesystem;

namespace {

Bytes read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<fs::path> images() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(FARGPU_TEST_SCOPES)) found.push_back(entry.path());
  return found;
}

}  // namespace

TEST_CASE("system scope: kernels with it are found in what nvcc makes, and no others") {
  std::size_t count = 0;
  for (const fs::path& path : images()) {
    if (path.filename().string().starts_with("functions")) continue;
    ++count;
    INFO(path.string());
    const auto names = system_scope_kernels(read_file(path));
    std::size_t with = 0;
    for (const std::string& name : names) {
      INFO(name);
      CHECK(name.starts_with("with_"));
      ++with;
    }
    CHECK(with == 12);
  }
  CHECK(count == 6);  // PTX, and machine code of five architectures
}

TEST_CASE("system scope: a function that has it is any kernel's") {
  std::size_t count = 0;
  for (const fs::path& path : images()) {
    if (!path.filename().string().starts_with("functions")) continue;
    ++count;
    INFO(path.string());
    const auto names = system_scope_kernels(read_file(path));
    CHECK(names == std::set<std::string, std::less<>>{"beside_it", "with_call"});
  }
  CHECK(count == 2);
}

TEST_CASE("system scope: images of anybody are read within their bounds") {
  std::mt19937 random(1);
  for (const fs::path& path : images()) {
    const Bytes whole = read_file(path);
    for (int round = 0; round < 200; ++round) {
      Bytes image = whole;
      if (round % 2 == 0) image.resize(random() % image.size());
      for (unsigned i = 0; i < 1 + random() % 16 && !image.empty(); ++i)
        image[random() % std::min<std::size_t>(image.size(), round % 3 == 0 ? 4096 : image.size())] =
            static_cast<std::byte>(random());
      // In a block of its own, so that a sanitizer sees a step beyond it.
      CHECK(system_scope_kernels(image).size() <= 64);
    }
  }
}

TEST_CASE("system scope: what an image may cost is bounded") {
  Bytes image = read_file(fs::path(FARGPU_TEST_SCOPES) / "kernels_90.fatbin");
  const auto names = system_scope_kernels(image);
  REQUIRE(!names.empty());
  struct {  // of a container that ends before it begins
    std::uint32_t magic = 0xba55ed50;
    std::uint16_t version = 1, header_bytes = 16;
    std::uint64_t bytes = ~std::uint64_t{16};
  } endless;
  const auto header = std::as_bytes(std::span(&endless, 1));
  image.insert(image.end(), header.begin(), header.end());
  CHECK(system_scope_kernels(image) == names);

  const auto kernels = [](std::size_t count, std::size_t name_bytes) {
    std::string text = ".version 8.0\n.target sm_90\n";
    for (std::size_t i = 0; i < count; ++i)
      text += ".entry k" + std::to_string(i) + std::string(name_bytes, 'a') + "() { fence.sc.sys; }\n";
    return system_scope_kernels(std::as_bytes(std::span(text))).size();
  };
  CHECK(kernels(10, 100) == 10);
  CHECK(kernels(10, 100'000) == 0);
  CHECK(kernels(2000, 1000) < 300);
}

TEST_CASE("system scope: what was found is kept, and large images are left alone") {
  SystemScope scope;
  const ImageHash one{}, other{std::byte{1}};
  const std::string text =
      ".version 8.0\n.target sm_90\n.visible .entry k(.param .u64 p) { red.relaxed.sys.global.add.s32 [%rd1], 1; }\n";
  const auto ptx = std::as_bytes(std::span(text));
  CHECK(scope.has(one, ptx, "k"));
  CHECK_FALSE(scope.has(one, ptx, "j"));
  CHECK(scope.has(one, {}, "k"));
  const std::string large = text + std::string(SystemScope::image_bytes_max, ' ');
  CHECK_FALSE(scope.has(other, std::as_bytes(std::span(large)), "k"));
  CHECK(scope.first());
  CHECK_FALSE(scope.first());
}
