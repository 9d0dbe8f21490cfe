#include "shared_things.h"

#include <cuda.h>

#include <algorithm>
#include <utility>

#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::server {

bool SharedThings::add(pid_t worker, const std::string& tenant, wire::Share::Reader share, Descriptor descriptor) {
  const auto key = share_key(share.getKey());
  const auto event = share.getEvent();
  const bool memory = share.getDevice() >= 0;
  if (!key || shares_.contains(*key) || event.size() > sizeof(CUipcEventHandle) ||
      (!memory && descriptor.number() >= 0) || share.getDevice() >= static_cast<int>(limits::devices_max))
    throw ProtocolError("the worker shares what cannot be shared");
  std::shared_ptr<Piece> piece;
  if (memory && share.getCameBy().size() != 0) {
    const auto came_by = share_key(share.getCameBy());
    const auto loan = came_by ? loans_.find({worker, *came_by}) : loans_.end();
    if (loan == loans_.end()) throw ProtocolError("the worker shares memory that it was not lent");
    piece = loan->second.piece;
  } else if (memory) {
    piece = std::make_shared<Piece>(Piece{.device = share.getDevice(), .bytes = share.getBytes(), .payer = worker});
  }
  // Without a descriptor: none was free here.
  if (of_workers_[worker].size() >= limits::shares_max || (memory && descriptor.number() < 0)) return false;
  FairLimit::Place room;
  if (memory && !(room = room_.take(tenant))) return false;
  shares_[*key] = {worker,
                   std::move(room),
                   {share.getDevice(), share.getBytes(), std::move(descriptor), copy_of(event)},
                   std::move(piece)};
  of_workers_[worker].insert(*key);
  return true;
}

void SharedThings::remove(pid_t worker, capnp::Data::Reader bytes) {
  const auto key = share_key(bytes);
  const auto found = key ? shares_.find(*key) : shares_.end();
  if (found == shares_.end() || found->second.worker != worker) return;
  const std::shared_ptr<Piece> piece = std::move(found->second.piece);
  shares_.erase(found);
  of_workers_[worker].erase(*key);
  if (piece && piece->payer == worker && !piece->inherited) pass_on(*piece);
}

// The next payer is the first of the holders that are left, for want of a better reason.
void SharedThings::pass_on(Piece& piece) {
  piece.inherited = !piece.holders.empty();
  piece.payer = piece.inherited ? piece.holders.begin()->first : -1;
  if (piece.inherited) charge_(piece.payer, piece.device, piece.bytes, true);
}

void SharedThings::remove_all(pid_t worker) {
  std::vector<std::shared_ptr<Piece>> pieces;
  for (const ShareKey& key : of_workers_[worker]) {
    const auto share = shares_.find(key);
    if (share->second.piece) pieces.push_back(share->second.piece);
    shares_.erase(share);
  }
  of_workers_.erase(worker);
  for (auto it = loans_.lower_bound({worker, ShareKey{}}); it != loans_.end() && it->first.first == worker;
       it = loans_.erase(it)) {
    it->second.piece->holders.erase(worker);
    pieces.push_back(it->second.piece);
  }
  loan_counts_.erase(worker);
  for (const auto& piece : pieces)
    if (piece->payer == worker) pass_on(*piece);
}

const SharedThing* SharedThings::lend(capnp::Data::Reader bytes, pid_t to, const std::function<bool(pid_t)>& may) {
  const auto key = share_key(bytes);
  const auto found = key ? shares_.find(*key) : shares_.end();
  if (found == shares_.end() || !may(found->second.worker)) return nullptr;
  const Share& share = found->second;
  if (!share.piece) return &share.thing;
  if (loan_counts_[to] >= loans_max) return nullptr;
  Loan& loan = loans_[{to, *key}];
  if (loan.piece && loan.piece != share.piece) return nullptr;  // a key is of one thing for ever
  ++loan_counts_[to];
  loan.piece = share.piece;
  ++loan.times;
  ++share.piece->holders[to];
  return &share.thing;
}

void SharedThings::take_over(pid_t worker, wire::Holds::Reader holds) {
  const auto key = share_key(holds.getKey());
  if (!key || holds.getDevice() < 0 || holds.getDevice() >= static_cast<int>(limits::devices_max) ||
      holds.getTimes() == 0 || holds.getTimes() > loans_max - loan_counts_[worker] || loans_.contains({worker, *key}))
    throw ProtocolError("the worker holds what cannot be lent");
  const auto found = shares_.find(*key);
  std::shared_ptr<Piece> piece = found == shares_.end() ? nullptr : found->second.piece;
  if (found != shares_.end() && !piece) throw ProtocolError("the worker holds an event");
  if (!piece) {
    std::shared_ptr<Piece>& unclaimed = unclaimed_[*key];
    if (!unclaimed)
      unclaimed = std::make_shared<Piece>(Piece{.device = holds.getDevice(), .bytes = holds.getBytes(), .payer = -1});
    unclaimed->bytes = std::min(unclaimed->bytes, holds.getBytes());
    piece = unclaimed;
  }
  piece->holders[worker] += holds.getTimes();
  loan_counts_[worker] += holds.getTimes();
  loans_[{worker, *key}] = {std::move(piece), holds.getTimes()};
}

void SharedThings::all_taken_over() {
  for (const auto& [key, piece] : std::exchange(unclaimed_, {})) pass_on(*piece);
}

void SharedThings::let_go(pid_t worker, capnp::Data::Reader bytes) {
  const auto key = share_key(bytes);
  const auto found = key ? loans_.find({worker, *key}) : loans_.end();
  if (found == loans_.end()) throw ProtocolError("the worker lets go what it was not lent");
  const std::shared_ptr<Piece> piece = found->second.piece;
  --loan_counts_[worker];
  if (--found->second.times == 0) loans_.erase(found);
  if (--piece->holders[worker] != 0) return;
  piece->holders.erase(worker);
  if (piece->payer != worker || !piece->inherited) return;
  charge_(worker, piece->device, piece->bytes, false);
  pass_on(*piece);
}

}  // namespace fargpu::server
