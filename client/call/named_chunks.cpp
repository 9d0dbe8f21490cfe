#include "named_chunks.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <system_error>

#include "file_names.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/quiet_thread.h"
#include "protocol/words.h"

namespace fargpu::client {
namespace {

constexpr unsigned threads_max = 8;
constexpr std::size_t spares_max = 16;
/// Questions about chunks that are sent anyway are left out while so many have no answer.
constexpr std::size_t asked_max = limits::content_words_max / 2;

}  // namespace

class NamedChunks::Spare : public std::enable_shared_from_this<Spare> {
 public:
  Memory take() {
    std::unique_ptr<std::byte[]> memory;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        memory = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!memory) memory = std::make_unique_for_overwrite<std::byte[]>(limits::lane_chunk_bytes);
    const auto self = shared_from_this();
    return Memory(memory.release(), [self](std::byte* bytes) { self->give(bytes); });
  }

 private:
  void give(std::byte* bytes) {
    std::unique_ptr<std::byte[]> memory(bytes);
    const std::lock_guard lock(mutex_);
    if (free_.size() < free_.capacity()) free_.push_back(std::move(memory));
  }
  static std::vector<std::unique_ptr<std::byte[]>> room() {
    std::vector<std::unique_ptr<std::byte[]>> list;
    list.reserve(spares_max);
    return list;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> free_ = room();
};

NamedChunks::NamedChunks(Events events)
    : events_(std::move(events)),
      spare_(std::make_shared<Spare>()),
      files_(std::make_unique<FileNames>(NameTable::of_user())) {}

NamedChunks::~NamedChunks() {
  end();
  FileNames::end(std::move(files_));
}

// Others need the processors too.
unsigned NamedChunks::threads() { return std::clamp(std::thread::hardware_concurrency() / 2, 1u, threads_max); }

bool NamedChunks::add(Job job) {
  try {
    Copied copied{std::move(job), spare_->take()};
    const std::lock_guard lock(mutex_);
    if (ended_) return true;  // so has the session
    while (threads_.size() < threads()) threads_.push_back(quiet_thread("fargpu-names", [this] { work(); }));
    jobs_.push_back(std::move(copied));
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::system_error&) {
    return false;
  }
  changed_.notify_one();
  return true;
}

void NamedChunks::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || !jobs_.empty(); });
    if (ended_) return;
    Copied copied = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    try {
      handle(copied);
    } catch (const std::exception& error) {
      events_.failed(words(error.what()));
    }
    copied = {};
    lock.lock();
  }
}

void NamedChunks::handle(Copied& copied) {
  Job& job = copied.job;
  const std::span<std::byte> bytes(copied.copy.get(), job.bytes);
  const auto send = [&](bool keep) { events_.send(job.chunk, bytes, keep, [copy = copied.copy] {}); };
  const bool readable = job.gather(bytes);
  if (!readable) {
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;  // the memory is the program's own affair by now
    }
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    if (job.told.unreadable) job.told.unreadable();
  }
  // While the memory is the program's to keep as it is.
  const FileNames::Found file = readable && !job.place.empty() ? files_->find(job.place) : FileNames::Found{};
  job.told.sent();
  if (!readable) return send(/*keep=*/false);
  if (job.way == Way::asked) {
    send(/*keep=*/true);
    const std::lock_guard lock(mutex_);
    if (asked_.size() >= asked_max) return;
  }
  const ContentName name = file.name ? *file.name : hashed(copied, file.place);
  if (file.name) events_.remembered();
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    asked_[{job.chunk.transfer, job.chunk.number}] = {job.way, bytes.size(),
                                                      job.way == Way::named ? copied.copy : nullptr};
  }
  const auto kind = job.way == Way::named ? ContentWord::Kind::named : ContentWord::Kind::asked;
  events_.say({kind, job.chunk, name, bytes.size()});
}

ContentName NamedChunks::hashed(const Copied& copied, const std::optional<FilePlace>& file) {
  const auto begin = Clock::now();
  const ContentName name = hash_image({copied.copy.get(), copied.job.bytes});
  events_.hashed(copied.job.bytes, Clock::now() - begin);
  if (file) files_->learn(*file, name, copied.copy);
  return name;
}

void NamedChunks::learn(std::span<const std::byte> place) { files_->learn(place); }

void NamedChunks::heard(const ContentWord& word) {
  const bool known = word.kind == ContentWord::Kind::known;
  if (!known && word.kind != ContentWord::Kind::unknown) throw ProtocolError("the worker asks about contents");
  Asked asked;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    const auto found = asked_.find({word.chunk.transfer, word.chunk.number});
    if (found == asked_.end()) throw ProtocolError("an answer about contents of which nobody asked");
    asked = std::move(found->second);
    asked_.erase(found);
  }
  events_.answered(asked.way, known, asked.bytes);
  if (known || asked.way != Way::named) return;
  events_.send(word.chunk, {asked.copy.get(), asked.bytes}, /*keep=*/true, [copy = asked.copy] {});
}

void NamedChunks::give_up() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

void NamedChunks::end() {
  const std::lock_guard closing(closing_);
  give_up();
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fargpu::client
