#include "named_chunks.h"

#include <algorithm>
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

constexpr unsigned threads_max = 16;
/// Copies are made before they are asked for while there are fewer than this: as many as the worker asks for at most.
constexpr std::size_t copies_before_ahead_max = 96;
constexpr std::size_t spares_max = copies_before_ahead_max;  // new memory costs as much as a copy
/// Questions about chunks that are sent anyway are left out while so many have no answer.
constexpr std::size_t asked_max = limits::content_words_max / 2;
/// To look for a file costs more than copying a chunk. After so many chunks in a row that no file has, only one of as
/// many is looked up.
constexpr unsigned no_file_enough = 8;

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
    ++lent_;
    return Memory(memory.release(), [self](std::byte* bytes) { self->give(bytes); });
  }
  /// How many are not back.
  std::size_t lent() const { return lent_; }

 private:
  void give(std::byte* bytes) {
    --lent_;
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
  std::atomic<std::size_t> lent_{0};
};

struct NamedChunks::Underway {
  Job job;
  Memory copy;
  bool readable = true;
  FileNames::Found file;
  ContentName name{};
  // Under the mutex.
  enum class Leave { now, later, never } leave = Leave::now;
  bool ready = false;  // to leave

  Key key() const { return {job.chunk.transfer, job.chunk.number}; }
  std::span<std::byte> bytes() const { return {copy.get(), job.bytes}; }
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

bool NamedChunks::add(Job job, bool ahead) {
  try {
    const std::lock_guard lock(mutex_);
    if (ended_) return true;  // so has the session
    // The larger bound: no honest worker leaves so many copies without an answer, or on their way.
    if (spare_->lent() >= (ahead ? copies_before_ahead_max : limits::content_words_max)) return false;
    while (threads_.size() < threads()) threads_.push_back(quiet_thread("fargpu-names", [this] { work(); }));
    const auto one = std::make_shared<Underway>(Underway{.job = std::move(job), .copy = spare_->take(), .file = {}});
    if (ahead) {
      one->leave = Underway::Leave::later;
      ahead_[one->key()] = one;
    }
    to_gather_.push_back(one);
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const std::system_error&) {
    return false;
  }
  changed_.notify_one();
  return true;
}

void NamedChunks::want(std::uint32_t transfer, std::uint64_t chunks, bool over) {
  std::vector<Held> ready;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = ahead_.lower_bound({transfer, 0}); it != ahead_.end() && it->first.first == transfer;) {
      const bool wanted = it->first.second < chunks;
      if (!wanted && !over) break;
      const Held& one = it->second;
      one->leave = wanted ? Underway::Leave::now : Underway::Leave::never;
      if (wanted && one->ready) ready.push_back(one);
      it = ahead_.erase(it);
    }
  }
  for (const Held& one : ready) go(*one);
}

void NamedChunks::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || !to_gather_.empty() || !to_hash_.empty(); });
    if (ended_) return;
    do_first(to_gather_.empty() ? to_hash_ : to_gather_, lock);
  }
}

bool NamedChunks::gather_next() {
  std::unique_lock lock(mutex_);
  if (ended_ || to_gather_.empty()) return false;
  ++helping_;
  do_first(to_gather_, lock);
  if (--helping_ == 0 && ended_) changed_.notify_all();
  return true;
}

// Under the mutex, but while it is done.
void NamedChunks::do_first(std::deque<Held>& jobs, std::unique_lock<std::mutex>& lock) {
  const bool gathers = &jobs == &to_gather_;
  Held one = std::move(jobs.front());
  jobs.pop_front();
  const bool wanted = one->leave != Underway::Leave::never;
  lock.unlock();
  try {
    if (!wanted && gathers) one->job.told.sent();  // nothing will be
    else if (wanted && gathers) gather(one);
    else if (wanted) hash(one);
  } catch (const std::exception& error) {
    events_.failed(words(error.what()));
  }
  one.reset();
  lock.lock();
}

void NamedChunks::gather(const Held& one) {
  Job& job = one->job;
  const std::span<std::byte> bytes = one->bytes();
  one->readable = job.gather(bytes);
  if (!one->readable) {
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;  // the memory is the program's own affair by now
    }
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    if (job.told.unreadable) job.told.unreadable();
  }
  // While the memory is the program's to keep as it is.
  if (one->readable && !job.place.empty() && looks_for_file()) {
    one->file = files_->find(job.place);
    if (one->file.place) no_file_in_row_ = 0;
    else ++no_file_in_row_;
  }
  job.told.sent();
  if (!one->readable) return leave(one);
  if (job.way == Way::asked) send(*one, /*keep=*/true);
  if (one->file.name) {
    one->name = *one->file.name;
    events_.remembered();
    return leave(one);
  }
  {
    const std::lock_guard lock(mutex_);
    if (job.way == Way::asked && asked_.size() >= asked_max) return;
    to_hash_.push_back(one);
  }
  changed_.notify_one();
}

bool NamedChunks::looks_for_file() { return no_file_in_row_ < no_file_enough || turn_++ % no_file_enough == 0; }

// The name is remembered, if it is one of a file.
void NamedChunks::hash(const Held& one) {
  const auto begin = Clock::now();
  one->name = name_content(one->bytes());
  events_.hashed(one->job.bytes, Clock::now() - begin);
  if (one->file.place) files_->learn(*one->file.place, one->name, one->copy);
  leave(one);
}

// All is known that it leaves with.
void NamedChunks::leave(const Held& one) {
  {
    const std::lock_guard lock(mutex_);
    one->ready = true;
    if (one->leave != Underway::Leave::now) return;
  }
  go(*one);
}

void NamedChunks::go(const Underway& one) {
  if (!one.readable) return send(one, /*keep=*/false);
  const Way way = one.job.way;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || (way == Way::asked && asked_.size() >= asked_max)) return;
    asked_[one.key()] = {way, one.job.bytes, way == Way::named ? one.copy : nullptr, Clock::now()};
  }
  const auto kind = way == Way::named ? ContentWord::Kind::named : ContentWord::Kind::asked;
  events_.say({kind, one.job.chunk, one.name, one.job.bytes});
}

void NamedChunks::send(const Underway& one, bool keep) {
  events_.send(one.job.chunk, one.bytes(), keep, [copy = one.copy] {});
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
  events_.answered(asked.way, known, asked.bytes, asked.said);
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
    std::unique_lock lock(mutex_);
    threads.swap(threads_);
    changed_.wait(lock, [&] { return helping_ == 0; });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fargpu::client
