#pragma once
// Cap'n Proto messages of one segment: built on the stack, read in place.

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "limits.h"

namespace fargpu {

/// Builds one message. Small messages (nearly all) never touch the heap.
class MessageWriter {
  // As capnp::MallocMessageBuilder, which zeroes its first segment once more when it goes, for a use that there never
  // is.
  class Builder final : public capnp::MessageBuilder {
   public:
    kj::ArrayPtr<capnp::word> allocateSegment(kj::uint words) override {
      if (std::exchange(first_taken_, true) || words > first_words) {
        std::vector<std::uint64_t>& more = more_.emplace_back(std::max<std::size_t>(words, 4 * first_words));
        return kj::arrayPtr(reinterpret_cast<capnp::word*>(more.data()), more.size());
      }
      std::memset(static_cast<void*>(first_), 0, sizeof(first_));
      return kj::arrayPtr(first_, first_words);
    }

   private:
    static constexpr std::size_t first_words = 96;
    alignas(8) capnp::word first_[first_words];  // zeros only once it is used
    bool first_taken_ = false;
    std::vector<std::vector<std::uint64_t>> more_;
  };

 public:
  /// The message's root; the same one each time.
  template <class Root>
  typename Root::Builder root() {
    return builder_.getRoot<Root>();
  }

  /// The finished segment; valid while this object lives. Empty if nothing was begun.
  std::span<const std::byte> finish() {
    auto segments = builder_.getSegmentsForOutput();
    if (segments.size() == 0) return {};
    if (segments.size() > 1) {
      // Rare: the message outgrew the first segment. Rebuild it in one that is large enough.
      flat_.emplace(builder_.sizeInWords() + 1);
      flat_->builder.setRoot(builder_.getRoot<capnp::AnyPointer>().asReader());
      segments = flat_->builder.getSegmentsForOutput();
    }
    const auto bytes = segments[0].asBytes();
    return {reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()};
  }

 private:
  Builder builder_;
  // Not capnp's own allocation: want of memory must come as std::bad_alloc, and from that it comes as a message that is
  // malformed.
  struct Flat {
    explicit Flat(std::size_t size)
        : words(size), builder(kj::arrayPtr(reinterpret_cast<capnp::word*>(words.data()), size)) {}
    std::vector<std::uint64_t> words;
    capnp::FlatMessageBuilder builder;
  };
  std::optional<Flat> flat_;
};

/// Reads one message in place; the bytes must outlive it and lie at a multiple of eight. No bytes read as a message all
/// of whose fields have their defaults. Malformed contents make accessors throw kj::Exception, which the end of a
/// session treats as a protocol error.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes)
      : segment_(segment(bytes)), reader_(kj::arrayPtr(&segment_, 1), options(bytes.size())) {}

  template <class Root>
  typename Root::Reader root() {
    return reader_.getRoot<Root>();
  }

 private:
  static kj::ArrayPtr<const capnp::word> segment(std::span<const std::byte> bytes) {
    static constexpr std::uint64_t null_root = 0;
    if (bytes.empty()) return {reinterpret_cast<const capnp::word*>(&null_root), 1};
    return {reinterpret_cast<const capnp::word*>(bytes.data()), bytes.size() / sizeof(capnp::word)};
  }
  static capnp::ReaderOptions options(std::size_t bytes) {
    capnp::ReaderOptions options;
    // Every word may be visited a few times, no more: amplification by shared pointers is cut off here.
    options.traversalLimitInWords = bytes / sizeof(capnp::word) * 4 + 64;
    options.nestingLimit = limits::message_nesting_max;
    return options;
  }

  kj::ArrayPtr<const capnp::word> segment_;
  capnp::SegmentArrayMessageReader reader_;
};

}  // namespace fargpu
