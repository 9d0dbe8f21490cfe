#include "frame_reader.h"

#include <algorithm>
#include <cstring>

#include "device_bytes.h"
#include "errors.h"
#include "program_memory.h"

namespace fargpu {
namespace {

constexpr std::size_t buffer_bytes = 128u << 10;

bool is_call(FrameHeader header) {
  mark_plain(header, header.bulk_bytes);
  return header.kind == FrameKind::call;
}

}  // namespace

bool FrameHandler::holds(const FrameHeader&, std::span<const std::byte>) { return true; }

FrameReader::FrameReader(Channel& channel, FrameHandler& handler, std::uint64_t frames_before)
    : channel_(channel), handler_(handler), buffer_(buffer_bytes), frames_(frames_before) {}

bool FrameReader::pump(unsigned frames_max) {
  bool progress = false, drained = false;
  while (true) {
    while (step()) {
      progress = true;
      if (--frames_max == 0) return true;
    }
    // The channel gave less than it was asked for: to ask again at once would only delay the answer to what came.
    if (blocked_ || drained) return progress;
    std::size_t received = 0, asked = 0;
    if (!missing_.empty()) {
      asked = missing_.size();
      received = receive_missing();
      missing_ = missing_.subspan(received);
    } else if (padding_missing_ > 0) {
      const OwnMemory own;
      asked = padding_missing_;
      received = channel_.receive_some(std::span(padding_).first(padding_missing_));
      padding_missing_ -= received;
    } else {
      if (begin_ > 0 && (begin_ == end_ || buffer_.size() - end_ < buffer_bytes / 4)) move_to_front();
      const OwnMemory own;
      asked = buffer_.size() - end_;
      received = channel_.receive_some(std::span(buffer_).subspan(end_));
      end_ += received;
    }
    if (received == 0) return progress;
    progress = true;
    drained = received < asked;
  }
}

// What cannot come to its place goes nowhere, so that the frames behind it are found.
std::size_t FrameReader::receive_missing() {
  try {
    return channel_.receive_some(missing_);
  } catch (const SystemError&) {
    throw_if_on_device(missing_.data());
    if (spoiled_) throw;
    spoiled_ = true;
    nowhere_.resize(missing_.size());
    missing_ = nowhere_;
    return channel_.receive_some(missing_);
  }
}

void FrameReader::unpack(std::span<std::byte> place) {
  if (place.empty() || !DeviceBytes::contains(place.data())) return decompressor_.unpack(packed_, place);
  std::vector<std::byte> unpacked(place.size());
  decompressor_.unpack(packed_, unpacked);
  copy_wherever(place.data(), unpacked.data(), unpacked.size());
}

void FrameReader::move_to_front() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
}

// The header of the frame at begin_; false until the message behind it is there in one piece.
bool FrameReader::read_head(FrameHeader& header) {
  if (end_ - begin_ < sizeof(header)) return false;
  std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
  check_frame_header(header);
  const std::size_t head_bytes = sizeof(header) + header.message_bytes;
  if (end_ - begin_ >= head_bytes) return true;
  if (buffer_.size() < begin_ + head_bytes) {  // a large message: make it fit
    move_to_front();
    if (buffer_.size() < head_bytes) buffer_.resize(head_bytes);
  }
  return false;
}

// Finds the place of the bulk bytes, and puts those there that have come with the head.
void FrameReader::begin_bulk(const FrameHeader& header, std::span<const std::byte> message) {
  if (is_compressed(header)) {
    packed_.resize(header.bulk_bytes);
    bulk_ = packed_;
  } else {
    bulk_ = handler_.place(header, message);
  }
  blocked_ = !bulk_;
  if (blocked_) return;
  const std::size_t head_bytes = sizeof(header) + header.message_bytes;
  const auto here = buffered().subspan(head_bytes);
  const std::size_t part = std::min<std::size_t>(here.size(), header.bulk_bytes);
  if (part > 0) copy_wherever(bulk_->data(), here.data(), part);
  if (here.size() >= padded(header.bulk_bytes)) return;
  missing_ = bulk_->subspan(part);
  padding_missing_ = padded(header.bulk_bytes) - std::max<std::size_t>(here.size(), header.bulk_bytes);
  end_ = begin_ + head_bytes;
  direct_ = true;
}

// All packed bytes are there: unpacks them into their place. From here on the header is that of a plain frame.
void FrameReader::unpack_bulk(FrameHeader& header, std::span<const std::byte> message) {
  mark_plain(header, Decompressor::size_of(packed_));
  const auto place = handler_.place(header, message);
  blocked_ = !place;
  if (blocked_) return;
  unpack(*place);
  bulk_ = place;
}

// Advances by one state; false when more bytes (or room) are needed.
bool FrameReader::step() {
  blocked_ = false;
  FrameHeader header;
  if (!read_head(header)) return false;
  const auto message = buffered().subspan(sizeof(header), header.message_bytes);
  blocked_ = holds_calls_ && !bulk_ && is_call(header) && handler_.holds(header, message);
  if (blocked_) return false;
  if (header.bulk_bytes > 0 && !bulk_) begin_bulk(header, message);
  if (blocked_ || !missing_.empty() || padding_missing_ > 0) return false;
  const std::size_t head_bytes = sizeof(header) + header.message_bytes;
  wire_bytes_ = head_bytes + padded(header.bulk_bytes);
  if (is_compressed(header)) unpack_bulk(header, message);
  if (blocked_) return false;
  ++frames_;
  if (header.sequence != static_cast<std::uint32_t>(frames_)) {
    throw ProtocolError("frame number " + std::to_string(header.sequence) + " where " +
                        std::to_string(static_cast<std::uint32_t>(frames_)) + " belongs");
  }
  const auto bulk = bulk_.value_or(std::span<std::byte>{});
  begin_ += direct_ ? head_bytes : wire_bytes_;
  bulk_.reset();
  direct_ = false;
  handler_.take(header, message, bulk);
  spoiled_ = false;
  return true;
}

}  // namespace fargpu
