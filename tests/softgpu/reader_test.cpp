// The parts that read what programs hand in: images, compressed texts, PTX. Whatever they are given, they answer with
// an error that says why, or with a program; they never crash and never take memory that the input does not pay for.

#include <lz4.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "image/image.h"
#include "program/build.h"
#include "ptx/error.h"
#include "ptx/parser.h"

using namespace fargpu::softgpu;

namespace {

// ---- what becomes of an input --------------------------------------------------------------------------------------

enum class Outcome { program, invalid_image, no_binary, syntax, version, link };

Outcome outcome_of(const std::function<void()>& read) {
  try {
    read();
    return Outcome::program;
  } catch (const ImageError& error) {
    return error.kind() == ImageError::Kind::no_binary ? Outcome::no_binary : Outcome::invalid_image;
  } catch (const ptx::UnsupportedVersion&) {
    return Outcome::version;
  } catch (const ptx::SyntaxError&) {
    return Outcome::syntax;
  } catch (const program::LinkError&) {
    return Outcome::link;
  }
}

std::shared_ptr<const Program> build(const std::vector<std::string>& texts) {
  std::vector<std::unique_ptr<ptx::Module>> modules;
  std::vector<const ptx::Module*> pointers;
  for (const std::string& text : texts) {
    modules.push_back(ptx::parse(text));
    pointers.push_back(modules.back().get());
  }
  return program::build(pointers);
}

Outcome outcome_of_ptx(const std::string& text) {
  return outcome_of([&] { build({text}); });
}
Outcome outcome_of_image(std::string_view image) {
  return outcome_of([&] { build(read_image(image.data(), image.size()).texts); });
}

/// As a load has it: an image that does not say how long it is, here with nothing mapped behind it.
Outcome outcome_of_unsized_image(std::string_view image) {
  constexpr size_t page = 4096;
  size_t bytes = (image.size() + page - 1) / page * page;
  auto* memory =
      static_cast<char*>(mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  char* start = memory + bytes - image.size();
  std::memcpy(start, image.data(), image.size());
  mprotect(memory + bytes, page, PROT_NONE);
  Outcome outcome = outcome_of([&] { build(read_image(start).texts); });
  munmap(memory, bytes + page);
  return outcome;
}

/// Far more than the inputs here are worth: what asks for it gets an exception that no test expects.
void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  rlimit limit = {uint64_t{2} << 30, uint64_t{2} << 30};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

// ---- inputs that are good ------------------------------------------------------------------------------------------

std::string file_contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Fatbins of the kernel programs, as nvcc writes them.
const std::vector<std::string>& compiled_images() {
  static const std::vector<std::string> images = [] {
    std::vector<std::string> result;
    std::istringstream paths(SOFTGPU_TEST_FATBINS);
    for (std::string path; std::getline(paths, path, ':');) result.push_back(file_contents(path));
    return result;
  }();
  return images;
}

const std::string small_text = R"(
.version 9.0
.target sm_90, texmode_independent
.address_size 64
/* a bit of everything */
.extern .shared .align 16 .b8 dynamic[];
.visible .global .align 4 .u32 counters[2][3] = {{1, 2}, {0x10, 3 * (2 + 5)}};
.const .align 8 .b8 table[16] = {generic(counters), 0, 0, 0, 0, 0, 0, 0, 0};
.global .align 8 .u64 where = counters + 8;
.func (.param .b32 result) twice(.param .b32 value) {
  .reg .b32 %r<2>;
  ld.param.u32 %r0, [value];
  add.u32 %r1, %r0, %r0;
  st.param.b32 [result], %r1;
  ret;
}
.visible .entry kernel(.param .u64 .ptr .global .align 8 out, .param .f32 scale)
.maxntid 128, 1, 1
.minnctapersm 2
{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<4>;
  .reg .v4 .f32 %v;
  .local .align 8 .b8 place[32];
  .shared .align 4 .b32 common[32];
  ld.param.u64 %rd0, [out];
  cvta.to.global.u64 %rd1, %rd0;
  mov.u32 %r0, %tid.x;
  ld.param.f32 %f0, [scale];
  mul.rn.f32 %f1, %f0, 0f40490FDB;
  setp.lt.u32 %p0|%p1, %r0, 16;
  @%p0 bra LOW;
  mov.u64 %rd2, place;
  st.local.v2.u32 [%rd2+8], {%r0, 7};
  bra.uni BOTH;
LOW:
  mad.lo.s32 %r1, %r0, (3 + 4) * 2, -1;
BOTH:
  shfl.sync.bfly.b32 %r2|%p2, %r1, 1, 31, -1;
  st.shared.u32 [common], %r2;
  bar.sync 0;
  atom.global.add.u32 %r3, [%rd1], 1;
  {
    .reg .b32 inner;
    .param .b32 argument;
    .param .b32 answer;
    st.param.b32 [argument], %r3;
    call.uni (answer), twice, (argument);
    ld.param.b32 inner, [answer];
    st.global.u32 [%rd1+4], inner;
  }
  ld.global.v4.f32 %v, [%rd1+16];
  add.f32 %v.x, %v.y, %f1;
  st.global.v4.f32 [%rd1+16], %v;
TABLE: .branchtargets LOW, BOTH;
  brx.idx %r0, TABLE;
  ret;
}
)";

struct Part {
  uint64_t flags;
  uint32_t architecture;
  std::string data;
  uint64_t uncompressed_bytes;
};

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr uint64_t flag_lz4 = 0x2000, flag_zstd = 0x8000;

std::string fatbin(const std::vector<Part>& parts) {
  std::string entries;
  for (const Part& part : parts) {
    uint64_t padded = (part.data.size() + 7) / 8 * 8;
    append<uint16_t>(entries, 1);
    append<uint16_t>(entries, 0x0101);
    append<uint32_t>(entries, 64);
    append<uint64_t>(entries, padded);
    append<uint32_t>(entries, static_cast<uint32_t>(part.data.size()));
    append<uint32_t>(entries, 0);
    append<uint16_t>(entries, 0);
    append<uint16_t>(entries, 9);
    append<uint32_t>(entries, part.architecture);
    append<uint64_t>(entries, 0);
    append<uint64_t>(entries, 0x11 | part.flags);
    append<uint64_t>(entries, 0);
    append<uint64_t>(entries, part.uncompressed_bytes);
    entries += part.data;
    entries.append(padded - part.data.size(), '\0');
  }
  std::string container;
  append<uint32_t>(container, 0xba55ed50);
  append<uint16_t>(container, 1);
  append<uint16_t>(container, 16);
  append<uint64_t>(container, entries.size());
  return container + entries;
}

std::string lz4_of(const std::string& text) {
  std::string result(LZ4_compressBound(static_cast<int>(text.size())), '\0');
  int bytes =
      LZ4_compress_default(text.data(), result.data(), static_cast<int>(text.size()), static_cast<int>(result.size()));
  REQUIRE(bytes > 0);
  return result.substr(0, bytes);
}

std::string zstd_of(const std::string& text) {
  std::string result(ZSTD_compressBound(text.size()), '\0');
  size_t bytes = ZSTD_compress(result.data(), result.size(), text.data(), text.size(), 3);
  REQUIRE(!ZSTD_isError(bytes));
  return result.substr(0, bytes);
}

std::string plain_image() { return fatbin({{0, 90, small_text + '\0', 0}}); }
std::string lz4_image() { return fatbin({{flag_lz4, 90, lz4_of(small_text), small_text.size()}}); }
std::string zstd_image() { return fatbin({{flag_zstd, 90, zstd_of(small_text), small_text.size()}}); }

// ---- inputs that are not -------------------------------------------------------------------------------------------

uint64_t seed() {
  static uint64_t value = [] {
    const char* text = std::getenv("TEST_SEED");
    uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 0) : 20260102;
    std::printf("TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return value;
}

/// How many mutations of each input; TEST_ROUNDS times as many as usual.
int rounds(int usual) {
  const char* text = std::getenv("TEST_ROUNDS");
  return usual * (text != nullptr ? std::atoi(text) : 1);
}

class Mutator {
 public:
  std::string bytes(std::string input) {
    for (int left = 1 + pick(4); left > 0 && !input.empty(); --left) {
      size_t at = pick(input.size());
      switch (pick(5)) {
        case 0: input[at] ^= static_cast<char>(1 << pick(8)); break;
        case 1: input[at] = static_cast<char>(pick(256)); break;
        case 2: {
          static constexpr uint64_t numbers[] = {0,          1,     0x7f,       0x7fff,    0x7fffffff,
                                                 0xffffffff, ~0ull, 1ull << 40, 1ull << 63};
          uint64_t number = numbers[pick(std::size(numbers))];
          std::memcpy(input.data() + at, &number, std::min<size_t>(size_t{1} << pick(4), input.size() - at));
          break;
        }
        case 3: input.erase(at, 1 + pick(16)); break;
        default: input.insert(at, input.substr(pick(input.size()), 1 + pick(16)));
      }
    }
    return input;
  }

  /// Changes that leave most of a text well formed: words are exchanged, left out, doubled, or taken from a list.
  std::string text(const std::string& input) {
    std::vector<std::string_view> words = words_of(input);
    std::map<size_t, std::string> changed;
    std::vector<std::string> kept;
    kept.reserve(words.size());
    for (std::string_view word : words) kept.emplace_back(word);
    for (int left = 1 + pick(3); left > 0; --left) {
      std::string& word = kept[pick(kept.size())];
      switch (pick(5)) {
        case 0: word = kept[pick(kept.size())]; break;
        case 1: word.clear(); break;
        case 2: word += " " + kept[pick(kept.size())]; break;
        default: {
          static const char* const list[] = {"{",
                                             "}",
                                             "[",
                                             "]",
                                             "(",
                                             ")",
                                             "<",
                                             ">",
                                             ";",
                                             ",",
                                             ":",
                                             "|",
                                             "!",
                                             "-",
                                             "@",
                                             "=",
                                             "_",
                                             "%r1",
                                             "%rd1",
                                             "%p1",
                                             "%f1",
                                             "%tid.x",
                                             "0",
                                             "1",
                                             "-1",
                                             "64",
                                             "4294967295",
                                             "18446744073709551615",
                                             "0f7F800000",
                                             "1e400",
                                             ".reg",
                                             ".shared",
                                             ".global",
                                             ".param",
                                             ".v4",
                                             ".b128",
                                             ".pred",
                                             ".f16x2",
                                             ".align",
                                             "ret",
                                             "bra",
                                             "call",
                                             "mov.b64",
                                             "ld.global.v8.b32",
                                             "cvt.rn.f32.s64",
                                             "wmma.load.a.sync.aligned.row.m16n16k16.global.f16",
                                             "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
                                             "tex.2d.v4.f32.f32",
                                             "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
                                             "atom.global.cas.b128",
                                             "\"",
                                             "/*",
                                             "prmt.b32",
                                             "lop3.b32",
                                             "bfe.s64",
                                             ".branchtargets",
                                             ".entry",
                                             ".func",
                                             "// ",
                                             "%",
                                             "WARP_SZ",
                                             "\xff"};
          word = list[pick(std::size(list))];
        }
      }
    }
    std::string result;
    for (const std::string& word : kept) result += word;
    return result;
  }

  size_t pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(engine_); }

 private:
  /// Words, numbers and single other characters; together they are the whole text.
  static std::vector<std::string_view> words_of(std::string_view text) {
    auto is_word = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '%' || c == '$';
    };
    std::vector<std::string_view> words;
    for (size_t start = 0; start < text.size();) {
      size_t end = start + 1;
      if (is_word(text[start]))
        while (end < text.size() && is_word(text[end])) ++end;
      words.push_back(text.substr(start, end - start));
      start = end;
    }
    return words;
  }

  std::mt19937_64 engine_{seed()};
};

/// A mutator that only broke its inputs, or never did, would test little.
struct Tally {
  int good = 0, bad = 0;
  void count(Outcome outcome) { ++(outcome == Outcome::program ? good : bad); }
};

std::string repeated(std::string_view text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string with_body(const std::string& body) {
  return ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry kernel() {\n.reg .b32 %r<4>; .reg .pred "
         "%p<4>; "
         ".reg .b64 %rd<4>;\n" +
         body + "\nret;\n}\n";
}
std::string with_module_scope(const std::string& text) {
  return ".version 8.0\n.target sm_90\n.address_size 64\n" + text + "\n";
}

}  // namespace

TEST_CASE("good images become programs") {
  REQUIRE_NOTHROW(build({small_text}));
  auto program = build({small_text});
  CHECK(program->routines.at(program->routine_index.at("kernel"))->unsupported == "");
  for (const std::string& image : {plain_image(), lz4_image(), zstd_image(), small_text}) {
    CHECK(outcome_of_image(image) == Outcome::program);
    CHECK(outcome_of_unsized_image(image + '\0') == Outcome::program);
  }
  for (const std::string& image : compiled_images()) CHECK(outcome_of_image(image) == Outcome::program);
  CHECK(outcome_of([] { read_image(make_linked_image({small_text}).data()); }) == Outcome::program);
}

TEST_CASE("the errors of images name what is wrong") {
  CHECK(outcome_of_image(fatbin({})) == Outcome::no_binary);
  CHECK(outcome_of_image(fatbin({{0, 100, small_text, 0}})) == Outcome::no_binary);
  CHECK(outcome_of_image("no image") == Outcome::invalid_image);
  CHECK(outcome_of_image("") == Outcome::invalid_image);
  CHECK(outcome_of_ptx(".version 99.0\n.target sm_90\n") == Outcome::version);
  CHECK(outcome_of_ptx(".version 8.0\n.target sm_100\n.address_size 64\n") == Outcome::link);
  std::string elf(
      "\x7f"
      "ELF\2\1\1",
      7);
  elf.resize(64);
  CHECK(outcome_of_image(elf) == Outcome::invalid_image);
  elf[18] = static_cast<char>(190);
  CHECK(outcome_of_image(elf) == Outcome::no_binary);
}

TEST_CASE("sizes that are not true cost nothing") {
  limit_memory();
  // Said to be larger when unpacked than it is, than fits, or than any text could be.
  std::string packed = lz4_of(small_text), packed_zstd = zstd_of(small_text);
  for (uint64_t size : {uint64_t{0}, uint64_t{1}, small_text.size() - 1, small_text.size() + 1, uint64_t{1} << 30,
                        uint64_t{1} << 40, UINT64_MAX}) {
    CHECK(outcome_of_image(fatbin({{flag_lz4, 90, packed, size}})) == Outcome::invalid_image);
    CHECK(outcome_of_image(fatbin({{flag_zstd, 90, packed_zstd, size}})) == Outcome::invalid_image);
  }
  // Sizes of the container and of its entry.
  for (size_t offset : {8, 16 + 8, 16 + 16}) {
    for (uint64_t size : {uint64_t{1} << 20, uint64_t{1} << 32, UINT64_MAX - 15, UINT64_MAX}) {
      std::string image = lz4_image();
      std::memcpy(image.data() + offset, &size, offset == 16 + 16 ? 4 : 8);
      Outcome outcome = outcome_of_image(image);
      CHECK((outcome == Outcome::invalid_image || outcome == Outcome::no_binary));
      outcome_of_unsized_image(image);
    }
  }
  // Wrappers whose pointers lead nowhere, to themselves, or to a list without end.
  struct Wrapper {
    uint32_t magic = 0x466243b1, version = 1;
    const void* contents;
    const void* list;
  };
  std::string container = plain_image(), unfit = fatbin({{0, 100, small_text, 0}});
  Wrapper wrapper = {.contents = container.data(), .list = nullptr};
  auto read_wrapper = [&] { return outcome_of([&] { build(read_image(&wrapper).texts); }); };
  CHECK(read_wrapper() == Outcome::program);
  for (const void* nowhere :
       {static_cast<const void*>(&wrapper), reinterpret_cast<const void*>(8), reinterpret_cast<const void*>(-8)}) {
    wrapper.contents = nowhere;
    CHECK(read_wrapper() == Outcome::invalid_image);
  }
  wrapper.contents = nullptr;
  CHECK(read_wrapper() == Outcome::no_binary);
  std::vector<const void*> list(5000, unfit.data());
  wrapper = {.version = 2, .contents = unfit.data(), .list = list.data()};
  CHECK(read_wrapper() == Outcome::no_binary);
  wrapper.list = reinterpret_cast<const void*>(8);
  CHECK(read_wrapper() == Outcome::invalid_image);
  wrapper.version = 3;
  CHECK(read_wrapper() == Outcome::invalid_image);
}

TEST_CASE("texts that nest without end") {
  limit_memory();
  constexpr size_t deep = 1 << 20;
  for (const std::string& body :
       {"mov.u32 %r0, " + repeated("(", deep), "mov.u32 %r0, " + repeated("-", deep) + "1;",
        "mov.u32 %r0, " + repeated("1 ? ", deep), "mov.u32 %r0, " + repeated("{", deep),
        "ld.global.u32 %r0, " + repeated("[", deep), "and.pred %p0, %p1, " + repeated("!", deep) + "%p2;",
        "setp.eq.u32 " + repeated("%p0|", deep) + "%p0, %r0, %r1;", "call " + repeated("(", deep)})
    CHECK(outcome_of_ptx(with_body(body)) == Outcome::syntax);
  CHECK(outcome_of_ptx(with_body(repeated("{", deep))) == Outcome::syntax);
  CHECK(outcome_of_ptx(with_body(repeated("{", 10000) + repeated("}", 10000))) == Outcome::program);
  CHECK(outcome_of_ptx(with_module_scope(".global .b32 a[2] = " + repeated("{", deep))) == Outcome::syntax);
  CHECK(outcome_of_ptx(with_module_scope(".global .attribute" + repeated("(", deep))) == Outcome::syntax);
}

TEST_CASE("declarations that ask for more than there is") {
  limit_memory();
  for (const char* text :
       {".global .b8 a[18446744073709551615];", ".global .b8 a[-1];", ".global .b8 a[1099511627776][1099511627776];",
        ".global .b8 a[1099511627776][16777217];", ".global .b32 a[2][1000000000] = {{1}, {2}};",
        ".global .b32 a[1] = {1, 2};", ".global .b8 a[4], a[4];", ".shared .b8 a[4294967296];",
        ".global .align 3 .b8 a[4];", ".global .u64 a = b;", ".global .b32 a = 1 / 0;", ".global .b32 a = 1 % 0;"})
    CHECK(outcome_of_ptx(with_module_scope(text)) == Outcome::syntax);
  CHECK(outcome_of_ptx(with_module_scope(".alias a, b;")) == Outcome::link);
  for (const char* body :
       {".reg .b32 %x<1048577>;", ".reg .b32 %x<4294967296>;", ".reg .b32 %x<1048000>; .reg .b32 %y<1048000>;",
        ".local .b8 a[1099511627776];", ".shared .b8 a[1073741824];", "bra NOWHERE;", "HERE: HERE: ret;", "@%r0 ret;",
        "@ghost ret;", "add.u32 %r0, %r1;", "add.u32 %r0, %r1, %r2, %r3;", "add.u32 {%r0, %r1}, %r2, %r3;",
        "add.u32 0, %r1, %r2;", "ld.global.u32 %r0, [];", "call ghost;", "mov.u32 %r0, ghost;"})
    CHECK(outcome_of_ptx(with_body(body)) == Outcome::syntax);
  // Registers times jumps.
  std::string jumps = ".reg .b32 %x<1000000>;\n";
  for (int i = 0; i < 20000; ++i) jumps += "@%p0 bra L" + std::to_string(i) + ";\nL" + std::to_string(i) + ":\n";
  auto built = build({with_body(jumps)});
  CHECK(!built->routines.at(built->routine_index.at("kernel"))->unsupported.empty());
}

TEST_CASE("texts cut off at every place") {
  limit_memory();
  Tally tally;
  for (size_t length = 0; length < small_text.size(); ++length)
    tally.count(outcome_of_ptx(small_text.substr(0, length)));
  // What ends between two definitions is a program.
  CHECK(tally.good > 0);
  CHECK(tally.bad > static_cast<int>(small_text.size()) / 2);
}

TEST_CASE("images cut off at every place") {
  limit_memory();
  for (const std::string& image : {plain_image(), lz4_image(), zstd_image()}) {
    for (size_t length = 0; length < image.size(); ++length) {
      CHECK(outcome_of_image(image.substr(0, length)) == Outcome::invalid_image);
      CHECK(outcome_of_unsized_image(image.substr(0, length)) == Outcome::invalid_image);
    }
  }
}

TEST_CASE("compressed texts cut off at every place") {
  limit_memory();
  std::string lz4 = lz4_of(small_text), zstd = zstd_of(small_text);
  for (size_t length = 0; length < lz4.size(); ++length)
    CHECK(outcome_of_image(fatbin({{flag_lz4, 90, lz4.substr(0, length), small_text.size()}})) ==
          Outcome::invalid_image);
  for (size_t length = 0; length < zstd.size(); ++length)
    CHECK(outcome_of_image(fatbin({{flag_zstd, 90, zstd.substr(0, length), small_text.size()}})) ==
          Outcome::invalid_image);
}

TEST_CASE("changed images") {
  limit_memory();
  Mutator mutator;
  Tally tally;
  for (const std::string& image : {plain_image(), lz4_image(), zstd_image()}) {
    for (int i = 0; i < rounds(3000); ++i) {
      std::string changed = mutator.bytes(image);
      tally.count(outcome_of_image(changed));
      tally.count(outcome_of_unsized_image(changed));
    }
  }
  CHECK(tally.good > 0);
  CHECK(tally.bad > tally.good);
}

TEST_CASE("changed texts") {
  limit_memory();
  Mutator mutator;
  Tally tally;
  for (int i = 0; i < rounds(6000); ++i) tally.count(outcome_of_ptx(mutator.text(small_text)));
  for (int i = 0; i < rounds(2000); ++i) tally.count(outcome_of_ptx(mutator.bytes(small_text)));
  CHECK(tally.good > tally.bad / 20);
  CHECK(tally.bad > tally.good / 20);
}

TEST_CASE("changed texts of compilers") {
  limit_memory();
  Mutator mutator;
  Tally tally;
  for (const std::string& image : compiled_images()) {
    std::string text = read_image(image.data(), image.size()).texts.at(0);
    for (int i = 0; i < rounds(10); ++i) tally.count(outcome_of_ptx(mutator.text(text)));
  }
  CHECK(tally.good > 0);
  CHECK(tally.bad > 0);
}
