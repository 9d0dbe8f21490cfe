// Contents that the host has kept need not travel, and what arrives is what was there, though the program writes it
// meanwhile.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "fixture.h"
#include "protocol/content_name.h"
#include "server/folder_account.h"
#include "server/worker/contents/content_store.h"
#include "tests/temporary_folder.h"
#include "wrap.h"

using namespace fargpu;
namespace fs = std::filesystem;

namespace {

/// Where the worker keeps contents while this lives.
struct Contents {
  Contents() { test::content_folder = own.path / "contents"; }
  ~Contents() { test::content_folder.clear(); }
  std::vector<fs::path> blocks() const {
    std::vector<fs::path> found;
    if (!fs::exists(test::content_folder)) return found;
    for (const auto& entry : fs::directory_iterator(test::content_folder))
      if (entry.path().filename() != server::FolderAccount::file_name) found.push_back(entry.path());
    return found;
  }
  test::TemporaryFolder own;
};

client::Config naming(client::ContentCache cache = client::ContentCache::always, unsigned lanes = 2) {
  client::Config config = test::Remote::default_config();
  config.lanes = lanes;
  config.content_cache = cache;
  config.transport = client::Transport::automatic;
  return config;
}

std::vector<unsigned char> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<unsigned char> bytes(count);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, count - i));
  }
  return bytes;
}

constexpr std::size_t size = (32u << 20) + 4321;  // the last chunk is a small one
/// All of that travelled, but for chunks that are counted when they have long arrived.
constexpr std::size_t most = size - (3u << 20);

/// Copies in a session of its own, checks what arrived, and tells how many bytes travelled.
std::uint64_t load(const std::vector<unsigned char>& bytes, const client::Config& config) {
  test::RemoteContext remote(config);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes.size()) == CUDA_SUCCESS);
  const auto sent = [&] { return remote.session().calls.commands.bytes_sent() + remote.session().lanes.bytes_sent(); };
  const std::uint64_t before = sent();
  REQUIRE(cuMemcpyHtoD_v2(memory, bytes.data(), bytes.size()) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::uint64_t travelled = sent() - before;
  std::vector<unsigned char> back(bytes.size());
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, back.size()) == CUDA_SUCCESS);
  CHECK(back == bytes);
  // What is kept is kept beside the session, however busy the machine is.
  const auto blocks = [] {
    std::size_t found = 0;
    if (fs::exists(test::content_folder))
      for (const auto& entry : fs::directory_iterator(test::content_folder))
        if (entry.path().filename().string().size() == 2 * sizeof(ContentName)) ++found;
    return found;
  };
  const bool keeps = remote.session().terms.contents.cache != client::ContentCache::never &&
                     remote.session().terms.contents.bytes_max > 0 && !test::content_folder.empty();
  for (int i = 0; keeps && i < 2000 && blocks() < (bytes.size() - 1) / limits::lane_chunk_bytes + 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return travelled;
}

}  // namespace

TEST_CASE("a second program sends next to nothing of what a first one has sent") {
  const Contents contents;
  const auto bytes = random_bytes(size, 1);
  const auto config = naming(client::ContentCache::always, GENERATE(1u, 3u));
  CHECK(load(bytes, config) >= most);
  CHECK(contents.blocks().size() == 33);
  CHECK(load(bytes, config) < size / 100);
  // A part that is other than before travels, and nothing else. Its chunks are the same ones.
  auto other = bytes;
  other[5u << 20] ^= 1;
  const std::uint64_t travelled = load(other, config);
  CHECK(travelled > size / 40);
  CHECK(travelled < size / 20);
}

TEST_CASE("what one copy of a session has brought, the next one need not, and it is counted") {
  const Contents contents;
  const auto bytes = random_bytes(size, 2);
  test::RemoteContext remote(naming());
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoD_v2(memory, bytes.data(), size) == CUDA_SUCCESS);
  for (int i = 0; i < 3000 && contents.blocks().size() < 33; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto asynchronously = GENERATE(false, true);
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, size, 0) == CUDA_SUCCESS);
  std::memcpy(pinned, bytes.data(), size);
  const auto copy = [&] {
    if (asynchronously) REQUIRE(cuMemcpyHtoDAsync_v2(memory, pinned, size, nullptr) == CUDA_SUCCESS);
    else REQUIRE(cuMemcpyHtoD_v2(memory, bytes.data(), size) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  };
  // Of the first ones some chunks are asked about only, and the answers are on their way.
  std::uint64_t travelled = size;
  client::stats::ContentCounts known;
  for (int i = 0; i < 20 && travelled >= size / 100; ++i) {
    const auto before = remote.session().lanes.bytes_sent();
    known = remote.session().lanes.content_counts();
    copy();
    travelled = remote.session().lanes.bytes_sent() - before;
  }
  CHECK(travelled < size / 100);
  auto counts = remote.session().lanes.content_counts();
  for (int i = 0; i < 3000 && counts.known - known.known < 33; ++i) {  // answers need not be there when the copy is
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    counts = remote.session().lanes.content_counts();
  }
  CHECK(counts.known - known.known >= 33);
  CHECK(counts.known_bytes - known.known_bytes >= size);
  CHECK(counts.named >= counts.known);
  CHECK(counts.hashing.count() > 0);
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("a block that is damaged or has gone travels again, and nothing else arrives") {
  const Contents contents;
  const auto bytes = random_bytes(size, 3);
  load(bytes, naming());
  const auto blocks = contents.blocks();
  REQUIRE(blocks.size() == 33);
  SECTION("all have gone") {
    fs::remove_all(test::content_folder);
    CHECK(load(bytes, naming()) >= most);
  }
  SECTION("one has gone") {
    fs::remove(blocks.front());
    CHECK(load(bytes, naming()) < size / 10);
  }
  SECTION("bytes of some are others") {
    for (std::size_t i = 0; i < blocks.size(); i += 10)
      std::fstream(blocks[i], std::ios::in | std::ios::out | std::ios::binary).seekp(77).put('x').flush();
    CHECK(load(bytes, naming()) < size / 5);
  }
  SECTION("one is a file of another") {
    fs::copy_file(blocks[0], blocks[1], fs::copy_options::overwrite_existing);
    CHECK(load(bytes, naming()) < size / 10);
  }
  CHECK(contents.blocks().size() == 33);
  CHECK(load(bytes, naming()) < size / 100);
}

TEST_CASE("nothing is kept or named where the client wants none of it, or shares memory, or the host keeps nothing") {
  const auto bytes = random_bytes(size, 4);
  SECTION("the client wants none of it") {
    const Contents contents;
    load(bytes, naming(client::ContentCache::never));
    CHECK(contents.blocks().empty());
  }
  SECTION("they share memory") {
    const Contents contents;
    client::Config config = test::Remote::sharing_config();
    config.content_cache = client::ContentCache::always;
    load(bytes, config);
    CHECK(contents.blocks().empty());
  }
  SECTION("the host keeps nothing") {
    load(bytes, naming());
    CHECK(load(bytes, naming()) >= most);
  }
}

TEST_CASE("rows with gaps are named as they would be sent") {
  const Contents contents;
  constexpr std::size_t width = 3000, pitch = 4096, rows = 4000;
  const auto bytes = random_bytes(pitch * rows, 5);
  for (int round = 0; round < 2; ++round) {
    test::RemoteContext remote(naming());
    CUdeviceptr memory = 0;
    REQUIRE(cuMemAlloc_v2(&memory, width * rows) == CUDA_SUCCESS);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = bytes.data();
    copy.srcPitch = pitch;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = memory;
    copy.dstPitch = width;
    copy.WidthInBytes = width;
    copy.Height = rows;
    REQUIRE(cuMemcpy2D_v2(&copy) == CUDA_SUCCESS);
    std::vector<unsigned char> back(width * rows);
    REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, back.size()) == CUDA_SUCCESS);
    for (std::size_t row = 0; row < rows; ++row)
      REQUIRE(std::memcmp(back.data() + row * width, bytes.data() + row * pitch, width) == 0);
    if (round == 1) CHECK(remote.session().lanes.bytes_sent() < width * rows / 50);
  }
}

TEST_CASE(
    "what arrives of memory that is written while it is named and sent was there, and names are of what is kept") {
  const Contents contents;
  constexpr std::size_t bytes = 12u << 20;
  // Two contents that the program goes back and forth between; of both the host may know chunks.
  const std::vector<std::vector<unsigned char>> both{random_bytes(bytes, 6), random_bytes(bytes, 7)};
  test::RemoteContext remote(naming(GENERATE(client::ContentCache::automatic, client::ContentCache::always), 3));
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&pinned, bytes, 0) == CUDA_SUCCESS);
  std::memcpy(pinned, both[0].data(), bytes);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    std::mt19937 random(8);
    while (!over) {
      const std::size_t at = random() % (bytes - (1u << 18)), count = random() % (1u << 18);
      std::memcpy(static_cast<unsigned char*>(pinned) + at, both[random() % 2].data() + at, count);
    }
  });
  std::vector<unsigned char> back(bytes);
  bool right = true;
  for (int round = 0; round < 30 && right; ++round) {
    REQUIRE(cuMemcpyHtoDAsync_v2(memory, pinned, bytes, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, bytes) == CUDA_SUCCESS);
    for (std::size_t i = 0; i < bytes && right; ++i) right = back[i] == both[0][i] || back[i] == both[1][i];
  }
  over = true;
  writer.join();
  CHECK(right);
  // Once nobody writes, what is there arrives.
  for (int round = 0; round < 4; ++round) {
    std::memcpy(pinned, both[static_cast<std::size_t>(round % 2)].data(), bytes);
    REQUIRE(cuMemcpyHtoD_v2(memory, pinned, bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, bytes) == CUDA_SUCCESS);
    CHECK(back == both[static_cast<std::size_t>(round % 2)]);
  }
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  for (const fs::path& block : contents.blocks()) {
    if (block.extension() == ".part") continue;
    std::ifstream file(block, std::ios::binary);
    const std::vector<char> held((std::istreambuf_iterator<char>(file)), {});
    std::string name;
    for (const std::byte byte : name_content(std::as_bytes(std::span(held))))
      for (const unsigned digit : {std::to_integer<unsigned>(byte) >> 4, std::to_integer<unsigned>(byte) & 15})
        name += "0123456789abcdef"[digit];
    CHECK(name == block.filename());
  }
}

TEST_CASE("what arrives of a mapped file that the program writes in its mapping, and takes back, was there") {
  const Contents contents;
  constexpr std::size_t bytes = 6u << 20;
  const std::vector<std::vector<unsigned char>> both{random_bytes(bytes, 12), random_bytes(bytes, 13)};
  const test::TemporaryFolder folder;
  const fs::path path = folder.path / "weights";
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(both[0].data()), bytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // until its times tell of changes
  const int file = ::open(path.c_str(), O_RDONLY);
  auto* const mapped =
      static_cast<unsigned char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
  ::close(file);
  REQUIRE(mapped != MAP_FAILED);
  test::RemoteContext remote(naming(client::ContentCache::always, 3));
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  std::vector<unsigned char> back(bytes);
  const auto arrived = [&] {
    REQUIRE(cuMemcpyHtoD_v2(memory, mapped, bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, bytes) == CUDA_SUCCESS);
  };
  // Until the names are remembered, where they can be.
  for (int i = 0; i < 20 && remote.session().lanes.content_counts().remembered < 6; ++i) {
    arrived();
    CHECK(back == both[0]);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::atomic<bool> over{false};
  std::thread writer([&] {
    std::mt19937 random(14);
    while (!over) {
      const std::size_t at = random() % (bytes - (1u << 18)), count = random() % (1u << 18);
      if (random() % 4 == 0) ::madvise(mapped + at / 4096 * 4096, count, MADV_DONTNEED);
      else std::memcpy(mapped + at, both[1].data() + at, count);
      if (random() % 8 == 0) ::madvise(mapped, bytes, MADV_DONTNEED);
    }
  });
  bool right = true;
  for (int round = 0; round < 40 && right; ++round) {
    arrived();
    for (std::size_t i = 0; i < bytes && right; ++i) right = back[i] == both[0][i] || back[i] == both[1][i];
  }
  over = true;
  writer.join();
  CHECK(right);
  // Once nobody writes, what is there arrives; and what other programs hear of the file is what it has.
  arrived();
  CHECK(std::memcmp(back.data(), mapped, bytes) == 0);
  ::madvise(mapped, bytes, MADV_DONTNEED);
  for (int i = 0; i < 3; ++i) {
    arrived();
    CHECK(back == both[0]);
  }
  ::munmap(mapped, bytes);
}

TEST_CASE("copies of many threads that are named keep their order, each in its stream") {
  const Contents contents;
  constexpr std::size_t bytes = 6u << 20;
  test::RemoteContext remote(naming());
  const std::vector<std::vector<unsigned char>> some{random_bytes(bytes, 9), random_bytes(bytes, 10),
                                                     random_bytes(bytes, 11)};
  std::vector<std::thread> threads;
  std::atomic<unsigned> wrong{0};
  for (unsigned number = 0; number < 3; ++number)
    threads.emplace_back([&, number] {
      cuCtxSetCurrent(remote.context);
      CUstream stream{};
      CUdeviceptr memory = 0;
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      cuMemAlloc_v2(&memory, bytes);
      std::vector<unsigned char> back(bytes);
      for (unsigned round = 0; round < 12; ++round) {
        // The second copy is the one that counts.
        cuMemcpyHtoDAsync_v2(memory, some[(round + number + 1) % 3].data(), bytes, stream);
        cuMemcpyHtoDAsync_v2(memory, some[(round + number) % 3].data(), bytes, stream);
        cuMemcpyDtoHAsync_v2(back.data(), memory, bytes, stream);
        cuStreamSynchronize(stream);
        if (back != some[(round + number) % 3]) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
