// Answers that are kept.

#include "client/call/reply_cache.h"

#include <catch2/catch.hpp>

#include "frames.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

TEST_CASE("an answer is found by opcode, context and request, and by nothing else") {
  ReplyCache cache;
  const Bytes request = pattern(24), answer = pattern(16, 9);
  const auto key = ReplyCache::key(Opcode::cuCtxGetLimit, 7, request);
  Bytes found;
  CHECK_FALSE(cache.find(key, found));
  cache.keep(key, answer, cache.changes());
  REQUIRE(cache.find(ReplyCache::key(Opcode::cuCtxGetLimit, 7, pattern(24)), found));
  CHECK(found == answer);
  CHECK_FALSE(cache.find(ReplyCache::key(Opcode::cuCtxGetCacheConfig, 7, request), found));
  CHECK_FALSE(cache.find(ReplyCache::key(Opcode::cuCtxGetLimit, 8, request), found));
  CHECK_FALSE(cache.find(ReplyCache::key(Opcode::cuCtxGetLimit, 7, pattern(24, 2)), found));
  CHECK_FALSE(cache.find(ReplyCache::key(Opcode::cuCtxGetLimit, 7, pattern(16)), found));
  CHECK_FALSE(cache.find(ReplyCache::key(Opcode::cuCtxGetLimit, 7, {}), found));
}

TEST_CASE("an answer without contents is an answer") {
  ReplyCache cache;
  const auto key = ReplyCache::key(Opcode::cuCtxGetLimit, 0, {});
  cache.keep(key, {}, cache.changes());
  Bytes found = pattern(3);
  CHECK(cache.find(key, found));
  CHECK(found.empty());
}

TEST_CASE("answers to one call are forgotten without the others") {
  ReplyCache cache;
  Bytes found;
  const auto limit = ReplyCache::key(Opcode::cuCtxGetLimit, 1, pattern(8)),
             other_limit = ReplyCache::key(Opcode::cuCtxGetLimit, 2, pattern(8));
  const auto config = ReplyCache::key(Opcode::cuCtxGetCacheConfig, 1, {});
  cache.keep(limit, pattern(8), cache.changes());
  cache.keep(other_limit, pattern(8), cache.changes());
  cache.keep(config, pattern(8), cache.changes());
  cache.forget(Opcode::cuCtxGetLimit);
  CHECK_FALSE(cache.find(limit, found));
  CHECK_FALSE(cache.find(other_limit, found));
  CHECK(cache.find(config, found));
  cache.clear();
  CHECK_FALSE(cache.find(config, found));
}

TEST_CASE("answers about one object are forgotten without those about others") {
  ReplyCache cache;
  Bytes found;
  constexpr auto opcode = Opcode::cuOccupancyMaxActiveBlocksPerMultiprocessor;
  const auto one = ReplyCache::key(opcode, 1, pattern(8), 0x100), other = ReplyCache::key(opcode, 1, pattern(8), 0x200);
  const auto of_all = ReplyCache::key(opcode, 1, pattern(8)),
             elsewhere = ReplyCache::key(Opcode::cuCtxGetLimit, 1, pattern(8), 0x100);
  for (const auto& key : {one, other, of_all, elsewhere}) cache.keep(key, pattern(8), cache.changes());
  cache.forget(opcode, 0x100);
  CHECK_FALSE(cache.find(one, found));
  CHECK(cache.find(other, found));
  CHECK(cache.find(of_all, found));
  CHECK(cache.find(elsewhere, found));
  cache.forget(opcode);
  CHECK_FALSE(cache.find(other, found));
  CHECK_FALSE(cache.find(of_all, found));
  CHECK(cache.find(elsewhere, found));
}

TEST_CASE("an answer that was asked for before something changed is not kept after it") {
  ReplyCache cache;
  Bytes found;
  const auto key = ReplyCache::key(Opcode::cuCtxGetLimit, 1, {});
  auto asked = cache.changes();
  cache.forget(Opcode::cuCtxGetLimit);
  cache.keep(key, pattern(8), asked);
  CHECK_FALSE(cache.find(key, found));
  asked = cache.changes();
  cache.clear();
  cache.keep(key, pattern(8), asked);
  CHECK_FALSE(cache.find(key, found));
  cache.keep(key, pattern(8), cache.changes());
  CHECK(cache.find(key, found));
}

TEST_CASE("the newest answer counts") {
  ReplyCache cache;
  const auto key = ReplyCache::key(Opcode::cuCtxGetLimit, 1, {});
  cache.keep(key, pattern(8, 1), cache.changes());
  cache.keep(key, pattern(8, 2), cache.changes());
  Bytes found;
  REQUIRE(cache.find(key, found));
  CHECK(found == pattern(8, 2));
}

TEST_CASE("answers do not pile up without end") {
  ReplyCache cache;
  Bytes found;
  const auto key_of = [](std::uint32_t i) { return ReplyCache::key(Opcode::cuCtxGetLimit, i, {}); };
  constexpr std::uint32_t many = 70000;
  for (std::uint32_t i = 0; i < many; ++i) cache.keep(key_of(i), {}, cache.changes());
  CHECK(cache.find(key_of(many - 1), found));
  CHECK_FALSE(cache.find(key_of(0), found));
}

TEST_CASE("calls name those whose answers they make stale") {
  const auto forgotten = forgotten_after(Opcode::cuCtxSetLimit);
  CHECK(std::find(forgotten.begin(), forgotten.end(), Opcode::cuCtxGetLimit) != forgotten.end());
  CHECK(forgotten_after(Opcode::cuCtxGetLimit).empty());
  // Operations do so too.
  const auto attributes = forgotten_after(Opcode::setFunctionAttribute);
  CHECK(std::find(attributes.begin(), attributes.end(), Opcode::cuOccupancyMaxActiveBlocksPerMultiprocessor) !=
        attributes.end());
  CHECK(std::find(attributes.begin(), attributes.end(), Opcode::cuOccupancyAvailableDynamicSMemPerBlock) !=
        attributes.end());
}
