#include "stream.h"

namespace fargpu::client {

void Stream::reset() {
  handle = Handle();
  flags = 0;
  priority = 0;
  id = 0;
  submitted = awaited = completed = settled = ordered = items = retired = fenced = 0;
  capture = nullptr;
  without_green = false;
}

Stream* Event::recorded_on() const {
  Stream* const where = stream.load();
  return where && where->handle.value() == stream_handle.load() ? where : nullptr;
}

void Event::reset() {
  handle = Handle();
  flags = 0;
  recorded = completed = 0;
  stream = nullptr;
  stream_handle = 0;
  recorded_by_work = false;
  capture = 0;
  watched = told = 0;
  polled = false;
}

}  // namespace fargpu::client
