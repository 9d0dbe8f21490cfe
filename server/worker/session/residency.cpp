#include "residency.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "protocol/errors.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

/// A wish that nobody has answered is said again: the broker may be another one by now.
constexpr auto wish_interval = std::chrono::seconds(1);
/// Room was made, and somebody else took it.
constexpr auto pause_after_theft = std::chrono::milliseconds(20);
constexpr const char* program_captures = "its program captures a stream";
constexpr const char* nothing_leaves =
    "it has no memory that can leave: what it has is shared, mapped nowhere, or of arrays, graphs and modules";

bool uses(const std::vector<DeviceRange>& ranges, const DeviceMemory::Piece& piece) {
  return std::any_of(piece.places.begin(), piece.places.end(), [&](const DeviceMemory::Piece::Place& place) {
    const DeviceRange whole{place.address, piece.bytes};
    return std::any_of(ranges.begin(), ranges.end(), [&](const DeviceRange& one) { return one.overlaps(whole); });
  });
}

}  // namespace

void Residency::hear(EvictOrder order) {
  {
    const std::lock_guard lock(mutex_);
    order_ = std::move(order);
    heard_ = true;
  }
  waker_.signal();
}

void Residency::hear_room(std::uint64_t request, bool made) {
  {
    const std::lock_guard lock(mutex_);
    room_ = {request, made};
    heard_ = true;
  }
  waker_.signal();
}

void Residency::hear_of_new_broker() {
  {
    const std::lock_guard lock(mutex_);
    new_broker_ = true;
    heard_ = true;
  }
  waker_.signal();
}

bool Residency::admits(Needs needs) {
  call_waits_ = state_ == State::LEAVING || !there(needs);
  if (call_waits_) needs_ = std::move(needs);
  return !call_waits_;
}

bool Residency::there(const Needs& needs) const {
  if (leaving_) return false;
  if (!needs) return portions_.empty();
  return std::none_of(portions_.begin(), portions_.end(), [&](const EvictedPortion& portion) {
    return portion.any([&](const DeviceMemory::Piece& piece) { return uses(*needs, piece); });
  });
}

bool Residency::poll() {
  const State before = state_;
  take_words();
  if (state_ == State::LEAVING && !leaving_) leave_when_idle();
  if (state_ == State::EVICTED && (call_waits_ || !waiting_.empty())) {
    wish_.reset();  // what it wanted before was less
    enter(State::WAITING);
  }
  const bool wants = state_ == State::WAITING || (state_ == State::RESIDENT && !waiting_.empty());
  if (wants && (!wish_ || Clock::now() - asked_ >= wish_interval) && (!ask_again_ || Clock::now() >= *ask_again_))
    want_room();
  return state_ != before;
}

void Residency::take_words() {
  if (!heard_.load(std::memory_order_acquire)) return;
  std::optional<EvictOrder> order;
  std::optional<std::pair<std::uint64_t, bool>> room;
  bool new_broker = false;
  {
    const std::lock_guard lock(mutex_);
    heard_ = false;
    order.swap(order_);
    room.swap(room_);
    std::swap(new_broker, new_broker_);
  }
  if (new_broker) {
    asked_ = {};
    order_number_ = 0;  // its orders have numbers of their own
    enter(state_);
  }
  if (room && wish_ && room->first == wish_->request) {
    wish_.reset();
    // Memory that is away comes back in any case: there is room as soon as others go.
    if (state_ == State::WAITING && room->second) come_back();
    else if (state_ == State::WAITING) ask_again_ = Clock::now() + wish_interval;
    else if (state_ == State::RESIDENT) serve_waiting(room->second);
    // So that the broker keeps the room for nobody any longer.
    if (state_ == State::RESIDENT && waiting_.empty()) enter(state_);
  }
  if (!order) return;
  order_number_ = order->number;
  if (state_ != State::LEAVING && state_ != State::RETURNING) begin_to_leave(std::move(*order));
  else enter(state_);
}

Channel::Timeout Residency::due() const {
  using std::chrono::milliseconds;
  if (state_ == State::LEAVING) return milliseconds(1);
  if (state_ == State::RESIDENT && waiting_.empty()) return Channel::Timeout::max();
  return ask_again_ ? pause_after_theft : milliseconds(200);
}

void Residency::enter(State state, const std::string& refusal, bool busy) {
  follow_course(state);
  state_ = state;
  if (state != State::LEAVING) call_waits_ = call_waits_ && !there(needs_);
  if (!options_.tell) return;
  ResidencyNews news{.state = state,
                     .away = std::vector<std::uint64_t>(devices_),
                     .rest = rest_,
                     .refusal = refusal,
                     .busy = busy,
                     .order = order_number_};
  for (std::size_t device = 0; device < devices_; ++device) news.away[device] = away_bytes(static_cast<int>(device));
  for (const EvictedPortion& portion : portions_)
    (portion.place->file ? news.disk_bytes : news.host_bytes) += portion.contents->kept_bytes();
  options_.tell(news);
}

void Residency::follow_course(State next) {
  if (next == state_) return;
  const auto now = ResidencyReturn::Clock::now();
  if (next == State::LEAVING && portions_.empty()) course_.leaving = now;
  if (next == State::EVICTED && course_.away < course_.leaving) course_.away = now;
  if (next == State::WAITING && state_ == State::EVICTED) course_.waiting = now;  // and not when it waits again
  if (next == State::RETURNING && course_.returning < course_.waiting) course_.returning = now;
}

std::uint64_t Residency::away_bytes(int device) const {
  std::uint64_t bytes = 0;
  for (const EvictedPortion& portion : portions_) bytes += portion.bytes(device);
  return bytes;
}

std::string Residency::error_text(CUresult result) const {
  const char* name = nullptr;
  return driver_.cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "an unknown error";
}

// What the host said of its disk is more than the driver's word for it.
std::string Residency::copy_error(CUresult result, const EvictedPortion& portion) const {
  return portion.contents->store_error().empty() ? error_text(result) : portion.contents->store_error();
}

// --- leaving --------------------------------------------------------------------------------------------------------

// What cannot leave in any case is found out before the program is made to wait for it. From then on no call is
// executed.
void Residency::begin_to_leave(EvictOrder order) {
  if (captures_.any()) return stay(program_captures, /*busy=*/true);
  std::uint64_t bytes = 0;
  for (const DeviceMemory::Piece& piece : enough_of(pieces(), order.bytes)) bytes += piece.bytes;
  if (bytes == 0) return stay(nothing_leaves);
  if (bytes > std::max(order.host_bytes_max, order.disk_bytes_max)) return stay(no_room_for(bytes));
  failed_ = CUDA_SUCCESS;
  deadline_ = Clock::now() + order.patience;
  leaving_by_ = std::move(order);
  enter(State::LEAVING);
  follow_work();
}

// Where nobody else looks for the end of a stream's work. Nothing is captured: that would break it.
void Residency::follow_work() {
  for (ContextState* const context : contexts_.all())
    for (StreamState* const stream : context->streams)
      if (stream->dirty() && !completions_.follow(*stream) && contexts_.make_current(*context))
        completions_.after(*stream, Completions::Kind::release, [this](CUresult result) {
          if (result != CUDA_SUCCESS) failed_ = result;
        });
}

bool Residency::dirty() const {
  for (const ContextState* const context : contexts_.all())
    for (const StreamState* const stream : context->streams)
      if (stream->dirty()) return true;
  return false;
}

bool Residency::leave_when_idle() {
  if (failed_ != CUDA_SUCCESS) {
    stay("the GPU's answer to earlier work is " + error_text(failed_));
    return true;
  }
  // Its beginning may have waited for other work.
  if (captures_.any()) {
    stay(program_captures, /*busy=*/true);
    return true;
  }
  std::string work = at_work_();
  if (work.empty() && dirty()) {
    follow_work();
    work = "its work on the GPU goes on";
  }
  if (work.empty()) {
    leave();
    return true;
  }
  if (Clock::now() < deadline_) return false;
  stay(work, /*busy=*/true);
  return true;
}

void Residency::stay(const std::string& why, bool busy) {
  leaving_by_ = {};
  if (leaving_) forget(*leaving_);
  leaving_.reset();
  enter(portions_.empty() ? State::RESIDENT : State::EVICTED, why, busy);
}

void Residency::forget(EvictedPortion& portion) {
  if (portion.store_bytes > 0) store_->give_up(portion.offset, portion.store_bytes);
  if (portion.contents) portion.place->give_up(*portion.contents);
  portion.contents.reset();
  portion.place.reset();
}

// What can leave, and is there.
std::vector<DeviceMemory::Piece> Residency::pieces() const {
  auto pieces = memory_.pieces();
  std::erase_if(pieces, [&](const auto& piece) { return !contexts_.on_device(piece.device); });
  return pieces;
}

// The store is large enough for all that could leave, and as much again, as portions come and go in any order.
void Residency::leave() {
  const auto parts_of = [&](const std::vector<DeviceMemory::Piece>& pieces) {
    std::vector<EvictedContents::Part> parts;
    for (const DeviceMemory::Piece& piece : pieces)
      parts.push_back({piece.address, piece.bytes, contexts_.on_device(piece.device)->cuda});
    return parts;
  };
  auto all = pieces();
  const std::uint64_t all_bytes = 2 * EvictedContents::store_bytes(parts_of(all));
  leaving_ = std::make_unique<EvictedPortion>();
  leaving_->pieces = enough_of(std::move(all), leaving_by_.bytes);
  if (leaving_->pieces.empty()) return stay(nothing_leaves);
  const auto parts = parts_of(leaving_->pieces);
  std::uint64_t bytes = 0;
  for (const EvictedContents::Part& part : parts) bytes += part.bytes;
  try {
    EvictedStore* const store = store_for(*leaving_, bytes, EvictedContents::store_bytes(parts), all_bytes);
    if (!store && leaving_by_.disk_bytes_max >= bytes)
      return stay("the host could make no file for it in its evicted_folder; the log of its fargpud says why");
    if (!store) return stay(no_room_for(bytes));
    leaving_->contents = std::make_unique<EvictedContents>(driver_, *store, leaving_->offset, parts);
  } catch (const SystemError& error) {
    return stay(error.what());
  }
  auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
  auto gone = std::make_shared<std::vector<DeviceMemory::Piece>>();
  gone->reserve(leaving_->pieces.size());
  auto renamed = std::make_shared<Renamed>();
  renamed->reserve(leaving_->pieces.size());
  blocking_calls_.run(
      [this, result, gone, renamed] {
        *result = leaving_->contents->copy_out();
        if (*result != CUDA_SUCCESS) return;
        for (DeviceMemory::Piece& piece : leaving_->pieces) {
          const auto before = piece.handle;
          if (memory_.leave(piece) != CUDA_SUCCESS) continue;
          gone->push_back(piece);
          if (before != 0) renamed->emplace_back(before, piece.handle);
        }
      },
      [this, result, gone, renamed] { left(*result, std::move(*gone), *renamed); });
}

// The host's memory is the faster place.
EvictedStore* Residency::store_for(EvictedPortion& portion, std::uint64_t bytes, std::uint64_t store_bytes,
                                   std::uint64_t all_bytes) {
  portion.place = std::make_shared<EvictedPlace>();
  EvictedPlace& place = *portion.place;
  place.budget = std::make_unique<HostBudget>(leaving_by_.host_bytes_max, place_);
  if (leaving_by_.host_bytes_max > 0) place.charge = HostCharge::try_take(*place.budget, bytes);
  if (place.charge && find_place(portion, store_bytes, all_bytes)) return store_.get();
  place.charge.reset();
  if (leaving_by_.file.number() < 0 || bytes > leaving_by_.disk_bytes_max) return nullptr;
  place.file = std::make_unique<EvictedOnDisk>(std::move(leaving_by_.file));
  return place.file.get();
}

// The first place in the store that no other portion has; the portion has none until this is true.
bool Residency::find_place(EvictedPortion& portion, std::uint64_t store_bytes, std::uint64_t all_bytes) {
  const auto in_store = [](const EvictedPortion& other) { return other.store_bytes > 0; };
  if ((!store_ || store_->bytes() < all_bytes) && std::none_of(portions_.begin(), portions_.end(), in_store))
    store_ = std::make_unique<EvictedInMemory>(all_bytes);
  std::uint64_t offset = 0;
  const auto in_the_way = [&](const EvictedPortion& other) {
    return offset < other.offset + other.store_bytes && other.offset < offset + store_bytes;
  };
  for (auto other = portions_.begin(); other != portions_.end();) {
    other = std::find_if(portions_.begin(), portions_.end(), in_the_way);
    if (other != portions_.end()) offset = other->offset + other->store_bytes;
  }
  if (offset + store_bytes > store_->bytes()) return false;
  portion.offset = offset;
  portion.store_bytes = store_bytes;
  return true;
}

std::string Residency::no_room_for(std::uint64_t bytes) const {
  return "the host has no room for its " + bytes_text(bytes) +
         " (evicted_bytes_max and evicted_disk_bytes_max of the host, host_memory of the tenant)";
}

void Residency::left(CUresult result, std::vector<DeviceMemory::Piece> gone, const Renamed& renamed) {
  handles_.rename(HandleKind::allocation, renamed);
  leaving_by_ = {};  // the file, too, if it was not needed
  if (result != CUDA_SUCCESS) return stay("its memory could not be copied: " + copy_error(result, *leaving_));
  if (gone.empty()) return stay("the driver does not give its addresses back");
  if (auto& charge = leaving_->place->charge) charge->shrink(leaving_->contents->kept_bytes());
  std::uint64_t bytes = 0;
  for (const DeviceMemory::Piece& piece : gone) bytes += piece.bytes;
  for (const DeviceMemory::Piece& piece : std::exchange(leaving_->pieces, {})) {
    const auto parts = piece.away ? memory_.divide(piece, part_bytes(piece.device)) : std::vector{piece};
    leaving_->pieces.insert(leaving_->pieces.end(), parts.begin(), parts.end());
  }
  const std::uint64_t portion_bytes = std::max(part_bytes(gone.front().device), bytes / 8);
  const auto cut = [full = EvictedPortion::each_of(portion_bytes)](const auto& before, const auto& piece) {
    return full(before, piece) || before.away != piece.away;
  };
  for (EvictedPortion& portion : EvictedPortion::divide(std::move(*leaving_), cut)) {
    if (portion.pieces.front().away) portions_.push_back(std::move(portion));
    else forget(portion);  // what was copied of memory that stays
  }
  leaving_.reset();
  missing_.clear();
  count_rest();
  enter(State::EVICTED);
}

void Residency::count_rest() {
  rest_.assign(devices_, 0);
  for (const DeviceMemory::Piece& piece : pieces()) rest_[static_cast<std::size_t>(piece.device)] += piece.bytes;
}

// Memory that is much of its device leaves in parts the next time, so that no more leaves than is wanted. A chunk of
// contents lies in one part.
std::uint64_t Residency::part_bytes(int device) const {
  std::size_t total = 0;
  if (driver_.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS) return TenantAccount::no_limit;
  constexpr std::uint64_t chunk = EvictedContents::chunk_bytes;
  return std::max(total / 32 / chunk * chunk, chunk);
}

// --- coming back ----------------------------------------------------------------------------------------------------

void Residency::come_back() {
  enter(State::RETURNING);
  missing_.assign(devices_, 0);
  any_back_ = false;
  for (EvictedPortion& portion : portions_) portion.tried = false;
  return_next();
}

// While the contents of one portion are copied, calls are executed that use others.
void Residency::return_next() {
  while (EvictedPortion* const portion = next_to_return()) {
    portion->tried = true;
    CUresult result = place(*portion);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) result = take_away(*portion);
    else if (result == CUDA_SUCCESS) {
      auto outcome = std::make_shared<CUresult>(CUDA_SUCCESS);
      return blocking_calls_.run([contents = portion->contents.get(), outcome] { *outcome = contents->copy_back(); },
                                 [this, portion, outcome] { arrived(*portion, *outcome); });
    }
    if (result != CUDA_SUCCESS) return lose(*portion, result);
  }
  end_return();
}

// What a call waits for is before the rest. Of a portion that it does not need as a whole, it waits for no more than
// that.
EvictedPortion* Residency::next_to_return() {
  const auto to_come = [](const EvictedPortion& portion) { return !portion.tried; };
  const auto needed = [&](const DeviceMemory::Piece& piece) { return call_waits_ && needs_ && uses(*needs_, piece); };
  const auto wanted = [&](const EvictedPortion& portion) { return to_come(portion) && portion.any(needed); };
  auto next = std::find_if(portions_.begin(), portions_.end(), wanted);
  if (next == portions_.end()) {
    next = std::find_if(portions_.begin(), portions_.end(), to_come);
    return next == portions_.end() ? nullptr : &*next;
  }
  auto parts = EvictedPortion::divide(
      std::move(*next), [&](const auto& before, const auto& piece) { return needed(before) != needed(piece); });
  next = portions_.erase(next);
  portions_.insert(next, std::make_move_iterator(parts.begin()), std::make_move_iterator(parts.end()));
  return &*std::find_if(portions_.begin(), portions_.end(), wanted);
}

CUresult Residency::place(EvictedPortion& portion) {
  CUresult all = CUDA_SUCCESS;
  for (DeviceMemory::Piece& piece : portion.pieces) {
    std::uint64_t& missing = missing_[static_cast<std::size_t>(piece.device)];
    const CUresult result = missing > 0 ? CUDA_ERROR_OUT_OF_MEMORY : move(piece, &DeviceMemory::come_back);
    if (result != CUDA_SUCCESS) all = result;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) missing += piece.bytes;
    else if (result != CUDA_SUCCESS) return result;
  }
  return all;
}

// All of the portion is there or nothing of it. What cannot be taken away is not what it was.
CUresult Residency::take_away(EvictedPortion& portion) {
  for (DeviceMemory::Piece& piece : portion.pieces)
    if (const CUresult bad = piece.away ? CUDA_SUCCESS : move(piece, &DeviceMemory::leave); bad != CUDA_SUCCESS)
      return bad;
  return CUDA_SUCCESS;
}

// The driver has another handle for it then. The program knows it by the one that it had.
CUresult Residency::move(DeviceMemory::Piece& piece, CUresult (DeviceMemory::*where)(DeviceMemory::Piece&)) {
  const auto before = piece.handle;
  const CUresult result = (memory_.*where)(piece);
  if (piece.handle != before) handles_.rename(HandleKind::allocation, {{before, piece.handle}});
  return result;
}

void Residency::arrived(EvictedPortion& portion, CUresult result) {
  if (result == CUDA_SUCCESS) {
    for (const DeviceMemory::Piece& piece : portion.pieces) course_.bytes += piece.bytes;
    forget(portion);
    portions_.erase(portions_.begin() + (&portion - portions_.data()));
    any_back_ = true;
  } else {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) result = take_away(portion);
    if (result != CUDA_SUCCESS) return lose(portion, result);
  }
  return_next();
}

void Residency::lose(const EvictedPortion& portion, CUresult result) {
  lost_ = "the session's evicted memory could not be brought back to the GPU: " + copy_error(result, portion);
}

void Residency::end_return() {
  count_rest();
  if (!portions_.empty()) {
    if (!any_back_) ask_again_ = Clock::now() + pause_after_theft;
    return enter(State::WAITING);
  }
  returned_(std::exchange(course_, {}));
  rest_.clear();
  missing_.clear();
  ask_again_.reset();
  enter(State::RESIDENT);
  serve_waiting(/*made=*/true);
}

// --- room -----------------------------------------------------------------------------------------------------------

void Residency::wait_for_room(const DeviceMemory::Shortage& shortage, std::function<void()> job) {
  waiting_.push_back({shortage, std::move(job)});
  wish_.reset();  // for more now
}

bool Residency::may_wait_for(const DeviceMemory::Shortage& shortage) const {
  std::size_t total = 0;
  return may_wait() && driver_.cuDeviceTotalMem_v2(&total, shortage.device) == CUDA_SUCCESS && shortage.bytes <= total;
}

void Residency::want_room() {
  ask_again_.reset();
  if (!wish_) {
    wish_ = RoomWish{
        .request = ++requests_, .bytes = std::vector<std::uint64_t>(devices_), .needed = state_ == State::WAITING};
    if (state_ == State::WAITING && std::any_of(missing_.begin(), missing_.end(), std::identity())) {
      wish_->bytes = missing_;
    } else if (state_ == State::WAITING) {
      for (std::size_t device = 0; device < devices_; ++device)
        wish_->bytes[device] = away_bytes(static_cast<int>(device));
    }
    for (const Waiting& one : waiting_)
      wish_->bytes[static_cast<std::size_t>(one.shortage.device)] += one.shortage.bytes;
  }
  asked_ = Clock::now();
  if (options_.want) options_.want(*wish_);
}

void Residency::serve_waiting(bool made) {
  no_room_ = !made;
  for (Waiting& one : std::exchange(waiting_, {})) one.job();
  no_room_ = false;
}

}  // namespace fargpu::server
