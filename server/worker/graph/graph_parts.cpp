#include "graph_parts.h"

#include <cstring>

#include <cstdio>
#include <cstdlib>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

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
  const std::uint64_t bytes = shape.bytes();
  {
    const std::lock_guard lock(mutex_);
    if (number == 0 || parts_.contains(number))
      throw ProtocolError("a part of a graph was given a number that is not free");
  }
  auto charge = HostCharge::take(budget_, bytes);
  if (!charge) return CUDA_ERROR_OUT_OF_MEMORY;
  void* staging = nullptr;
  if (bytes > 0) {
    if (const CUresult result = driver.cuMemHostAlloc(&staging, bytes, CU_MEMHOSTALLOC_PORTABLE);
        result != CUDA_SUCCESS)
      return result;
    std::memset(staging, 0, bytes);  // all of it is delivered, whatever the copy wrote
  }
  auto last = std::make_unique<Last>(Last{gone_, number});
  const CUresult result =
      driver.cuUserObjectCreate(&reference, last.get(), on_last, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (result != CUDA_SUCCESS) {
    if (staging) driver.cuMemFreeHost(staging);
    return result;
  }
  (void)last.release();  // on_last has it
  const std::lock_guard lock(mutex_);
  parts_[number] = {static_cast<std::byte*>(staging), shape, std::nullopt, context, std::move(*charge), reference};
  if (staging) by_staging_[staging] = number;
  return result;
}

void GraphParts::let_go(DriverTable& driver, CUgraph graph, std::uint64_t number) {
  CUuserObject object = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = parts_.find(number); found != parts_.end()) object = found->second.object;
  }
  if (object) driver.cuGraphReleaseUserObject(graph, object, 1);
}

std::span<std::byte> GraphParts::staging(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(number);
  if (found == parts_.end() || !found->second.staging) return {};
  return {found->second.staging, found->second.shape.bytes()};
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

void GraphParts::erase(DriverTable& driver, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  if (found->second.staging) {
    by_staging_.erase(found->second.staging);
    driver.cuMemFreeHost(found->second.staging);
  }
  parts_.erase(found);
}

void GraphParts::inherit(std::uint32_t from, std::uint32_t to) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, part] : parts_)
    if (part.context == from) part.context = to;
}

void GraphParts::context_closes(DriverTable& driver, std::uint32_t context) {
  const std::lock_guard lock(mutex_);
  for (auto& [number, part] : parts_) {
    if (!part.staging || part.context != context) continue;
    by_staging_.erase(part.staging);
    driver.cuMemFreeHost(part.staging);
    part.staging = nullptr;
    part.charge = HostCharge();
  }
}

}  // namespace fargpu::server
