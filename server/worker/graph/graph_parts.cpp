#include "graph_parts.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t spare_bytes_max = 256u << 20;

// Stands in the driver's graphs where a function of the client belongs. Graphs that hold it are run in pieces around
// it.
void CUDA_CB run_in_client(void*) {
  std::fputs("fargpu-worker: the driver ran a host node that only the client can run\n", stderr);
  std::abort();
}

}  // namespace

GraphParts::GraphParts(Waker& waker, HostBudget& budget) : budget_(budget) { gone_->waker = &waker; }

GraphParts::~GraphParts() {
  const std::lock_guard lock(gone_->mutex);
  gone_->waker = nullptr;
}

void CUDA_CB GraphParts::on_last(void* argument) {
  const std::unique_ptr<Last> last(static_cast<Last*>(argument));
  const std::lock_guard lock(last->gone->mutex);
  last->gone->numbers.push_back(last->number);
  if (last->gone->waker) last->gone->waker->signal();
}

CUresult GraphParts::add(DriverTable& driver, std::uint64_t number, const CopyShape& shape, std::uint32_t context,
                         CUuserObject& reference) {
  {
    const std::lock_guard lock(mutex_);
    if (number == 0 || parts_.contains(number))
      throw ProtocolError("a part of a graph was given a number that is not free");
  }
  Part part{.shape = shape, .context = context};
  if (shape.bytes() > 0)
    if (const CUresult bad = give_staging(driver, part); bad != CUDA_SUCCESS) return bad;
  auto last = std::make_unique<Last>(Last{gone_, number});
  const CUresult result =
      driver.cuUserObjectCreate(&reference, last.get(), on_last, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (result != CUDA_SUCCESS) {
    unpin(driver, part);
    return result;
  }
  (void)last.release();  // on_last has it
  part.object = reference;
  const std::lock_guard lock(mutex_);
  if (!part.staging.empty()) by_staging_[part.staging.bytes().data()] = number;
  parts_[number] = std::move(part);
  return result;
}

// Zeros: all of it is delivered, whatever the copy wrote.
CUresult GraphParts::give_staging(DriverTable& driver, Part& part) {
  const std::uint64_t bytes = (part.shape.bytes() + page_bytes - 1) / page_bytes * page_bytes;
  if (take_spare(part, bytes)) return CUDA_SUCCESS;
  auto charge = HostCharge::try_take(budget_, bytes);
  if (!charge) {
    drop_spares(driver, 0);
    charge = HostCharge::try_take(budget_, bytes);
  }
  if (!charge) {
    for (auto& [number, used] : used_) unpin(driver, used);  // waits until the GPU has passed what uses it
    used_.clear();
    charge = HostCharge::take(budget_, bytes);
  }
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  part.charge = std::move(*charge);
  part.staging = Pages(bytes);
  if (part.staging.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver.cuMemHostRegister_v2(part.staging.bytes().data(), bytes, CU_MEMHOSTREGISTER_PORTABLE);
  part.pinned = result == CUDA_SUCCESS;
  return result;
}

bool GraphParts::take_spare(Part& part, std::uint64_t bytes) {
  const auto [first, end] = spare_.equal_range(bytes);
  const auto spare = std::find_if(first, end, [&](const auto& one) { return one.second.context == part.context; });
  if (spare == end) return false;
  part.staging = std::move(spare->second.staging);
  part.charge = std::move(spare->second.charge);
  part.pinned = true;
  spare_.erase(spare);
  spare_bytes_ -= bytes;
  std::memset(part.staging.bytes().data(), 0, bytes);
  return true;
}

// The largest first: each costs a wait.
void GraphParts::drop_spares(DriverTable& driver, std::uint64_t bytes_left) {
  while (spare_bytes_ > bytes_left) {
    const auto largest = std::prev(spare_.end());
    unpin(driver, largest->second);
    spare_bytes_ -= largest->first;
    spare_.erase(largest);
  }
}

CUuserObject GraphParts::object_of(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(number);
  return found == parts_.end() ? nullptr : found->second.object;
}

CUresult GraphParts::keep(DriverTable& driver, CUgraph keeper, std::uint64_t number) {
  const CUuserObject object = object_of(number);
  return object ? driver.cuGraphRetainUserObject(keeper, object, 1, 0) : CUDA_SUCCESS;
}

void GraphParts::let_go(DriverTable& driver, CUgraph graph, std::uint64_t number) {
  if (const CUuserObject object = object_of(number)) driver.cuGraphReleaseUserObject(graph, object, 1);
}

std::span<std::byte> GraphParts::staging(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(number);
  if (found == parts_.end() || !found->second.pinned) return {};
  return found->second.staging.bytes().first(found->second.shape.bytes());
}

CopyShape GraphParts::shape(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(number);
  return found == parts_.end() ? CopyShape() : found->second.shape;
}

void GraphParts::map(std::uint64_t number, const std::optional<CopySide>& place) {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  found->second.place = place;
  ++places_changed_;
}

std::optional<CopySide> GraphParts::place(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(number);
  return found == parts_.end() ? std::nullopt : found->second.place;
}

std::uint64_t GraphParts::at(const CopySide& side) const {
  if (side.in_array()) return 0;
  const std::lock_guard lock(mutex_);
  // Host memory may come back as unified memory.
  const auto found = by_staging_.find(reinterpret_cast<const void*>(side.place));
  return found == by_staging_.end() ? 0 : found->second;
}

std::uint64_t GraphParts::of(const CUDA_HOST_NODE_PARAMS& node) const {
  const auto number = reinterpret_cast<std::uint64_t>(node.userData);
  const std::lock_guard lock(mutex_);
  return node.fn == run_in_client && parts_.contains(number) ? number : 0;
}

CUDA_HOST_NODE_PARAMS GraphParts::placeholder(std::uint64_t number) {
  return {run_in_client, reinterpret_cast<void*>(number)};
}

void GraphParts::set_bodies(CUgraphNode node, std::vector<CUgraph> bodies) {
  const std::lock_guard lock(mutex_);
  bodies_[node] = std::move(bodies);
}

std::vector<CUgraph> GraphParts::bodies(CUgraphNode node) const {
  const std::lock_guard lock(mutex_);
  const auto found = bodies_.find(node);
  return found == bodies_.end() ? std::vector<CUgraph>{} : found->second;
}

std::vector<std::uint64_t> GraphParts::gone() {
  const std::lock_guard lock(gone_->mutex);
  return std::exchange(gone_->numbers, {});
}

void GraphParts::erase(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  auto gone = parts_.extract(number);
  if (!gone) return;
  by_staging_.erase(gone.mapped().staging.bytes().data());
  if (!gone.mapped().pinned) return;
  gone.key() = ++last_used_;
  used_.insert(std::move(gone));
}

void GraphParts::passed(DriverTable& driver, std::uint64_t last) {
  while (!used_.empty() && used_.begin()->first <= last) {
    Part part = std::move(used_.extract(used_.begin()).mapped());
    const std::uint64_t bytes = part.charge.bytes();
    if (!budget_.has_plenty(bytes)) {
      unpin(driver, part);
      continue;
    }
    spare_.emplace(bytes, std::move(part));
    spare_bytes_ += bytes;
  }
  drop_spares(driver, spare_bytes_max);
}

void GraphParts::inherit(std::uint32_t from, std::uint32_t to) {
  const std::lock_guard lock(mutex_);
  const auto inherited = [&](auto& parts) {
    for (auto& [number, part] : parts)
      if (part.context == from) part.context = to;
  };
  inherited(parts_);
  inherited(used_);
  inherited(spare_);
}

void GraphParts::context_closes(DriverTable& driver, std::uint32_t context) {
  const std::lock_guard lock(mutex_);
  const auto unpin_own = [&](auto& parts) {
    for (auto& [number, part] : parts)
      if (part.context == context) unpin(driver, part);
  };
  unpin_own(parts_);
  unpin_own(used_);
  unpin_own(spare_);
  std::erase_if(used_, [](const auto& one) { return !one.second.pinned; });
  std::erase_if(spare_, [&](const auto& one) {
    if (!one.second.pinned) spare_bytes_ -= one.first;
    return !one.second.pinned;
  });
}

void GraphParts::unpin(DriverTable& driver, Part& part) {
  if (std::exchange(part.pinned, false) && driver.cuMemHostUnregister(part.staging.bytes().data()) != CUDA_SUCCESS)
    part.staging.keep_place();  // for the driver it is pinned yet
}

}  // namespace fargpu::server
