#include "program/register_allocation.h"

#include <algorithm>
#include <map>
#include <string>

#include "program/error.h"

namespace fargpu::softgpu::program {
namespace {

// The sets of one function together; compilers stay far below.
constexpr uint64_t set_bytes_max = uint64_t{1} << 30;

/// A set of virtual registers.
class RegisterSet {
 public:
  explicit RegisterSet(size_t count) : words_((count + 63) / 64) {}
  bool contains(uint32_t r) const { return words_[r / 64] >> (r % 64) & 1; }
  void insert(uint32_t r) { words_[r / 64] |= uint64_t{1} << (r % 64); }
  void erase(uint32_t r) { words_[r / 64] &= ~(uint64_t{1} << (r % 64)); }
  /// Adds all of the other set; true if that changed anything.
  bool merge(const RegisterSet& other) {
    uint64_t added = 0;
    for (size_t i = 0; i < words_.size(); ++i) {
      added |= other.words_[i] & ~words_[i];
      words_[i] |= other.words_[i];
    }
    return added != 0;
  }
  template <class F>
  void for_each(F&& f) const {
    for (size_t i = 0; i < words_.size(); ++i)
      for (uint64_t word = words_[i]; word != 0; word &= word - 1)
        f(static_cast<uint32_t>(i * 64 + static_cast<size_t>(std::countr_zero(word))));
  }

 private:
  std::vector<uint64_t> words_;
};

bool is_virtual(const Value& value) { return value.kind == Value::Kind::virtual_register; }

template <class F>
void for_each_definition(const IrInstruction& instruction, F&& f) {
  for (int i = 0; i < instruction.definition_count; ++i)
    if (is_virtual(instruction.operands[i])) f(instruction.operands[i].index);
  for (const Value& value : instruction.more_definitions)
    if (is_virtual(value)) f(value.index);
}

template <class F>
void for_each_use(const IrInstruction& instruction, F&& f) {
  for (int i = instruction.definition_count; i < instruction.operand_count; ++i)
    if (is_virtual(instruction.operands[i])) f(instruction.operands[i].index);
  for (const Value& value : instruction.more_uses)
    if (is_virtual(value)) f(value.index);
  if (instruction.guard != none) {
    f(instruction.guard);
    // Where the guard is false the old value stays.
    for_each_definition(instruction, f);
  }
}

/// What is needed at the end of each block.
std::vector<RegisterSet> find_live_out(const IrFunction& function, const ControlFlow& flow) {
  size_t count = function.registers().size();
  const auto& code = function.instructions();
  if (count / 8 * 3 * flow.blocks.size() > set_bytes_max)
    throw Unsupported("a function of " + std::to_string(count) + " registers and " +
                      std::to_string(flow.blocks.size()) + " basic blocks is too large");
  std::vector<RegisterSet> live_in(flow.blocks.size(), RegisterSet(count));
  std::vector<RegisterSet> defined(flow.blocks.size(), RegisterSet(count));
  std::vector<RegisterSet> live_out(flow.blocks.size(), RegisterSet(count));
  for (size_t b = 0; b < flow.blocks.size(); ++b)
    for (uint32_t i = flow.blocks[b].last; i-- > flow.blocks[b].first;) {
      for_each_definition(code[i], [&](uint32_t r) {
        live_in[b].erase(r);
        defined[b].insert(r);
      });
      for_each_use(code[i], [&](uint32_t r) { live_in[b].insert(r); });
    }
  // From the last block to the first, until nothing changes; most edges lead forwards.
  std::vector<bool> is_pending(flow.blocks.size(), true);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (size_t b = flow.blocks.size(); b-- > 0;) {
      if (!is_pending[b]) continue;
      is_pending[b] = false;
      bool has_grown = false;
      for (uint32_t to : flow.blocks[b].successors) has_grown |= live_out[b].merge(live_in[to]);
      if (!has_grown) continue;
      RegisterSet passing = live_out[b];
      defined[b].for_each([&](uint32_t r) { passing.erase(r); });
      if (!live_in[b].merge(passing)) continue;
      for (uint32_t from : flow.blocks[b].predecessors) {
        is_pending[from] = true;
        has_changed = true;
      }
    }
  }
  return live_out;
}

/// From the first to the last instruction at which a register's value is held.
struct Interval {
  uint32_t reg = 0;
  uint32_t begin = none;
  uint32_t end = 0;
};

std::vector<Interval> find_intervals(const IrFunction& function, const ControlFlow& flow) {
  std::vector<RegisterSet> live_out = find_live_out(function, flow);
  std::vector<Interval> intervals(function.registers().size());
  for (uint32_t r = 0; r < intervals.size(); ++r) intervals[r].reg = r;
  auto extend = [&](uint32_t r, uint32_t at) {
    intervals[r].begin = std::min(intervals[r].begin, at);
    intervals[r].end = std::max(intervals[r].end, at);
  };
  const auto& code = function.instructions();
  for (size_t b = 0; b < flow.blocks.size(); ++b) {
    const BasicBlock& block = flow.blocks[b];
    RegisterSet live = live_out[b];
    live.for_each([&](uint32_t r) { extend(r, block.last - 1); });
    for (uint32_t i = block.last; i-- > block.first;) {
      for_each_definition(code[i], [&](uint32_t r) {
        extend(r, i);
        live.erase(r);
      });
      for_each_use(code[i], [&](uint32_t r) {
        extend(r, i);
        live.insert(r);
      });
    }
    live.for_each([&](uint32_t r) { extend(r, block.first); });
  }
  std::erase_if(intervals, [](const Interval& interval) { return interval.begin == none; });
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.reg < b.reg;
  });
  return intervals;
}

/// Bytes of the 32 lanes of a register, in multiples of the alignment of lanes.
uint32_t frame_bytes_of(uint32_t bytes) { return bytes == 0 ? 64 : (bytes * warp_size + 63) / 64 * 64; }

}  // namespace

RegisterAllocation allocate_registers(const IrFunction& function, const ControlFlow& flow) {
  RegisterAllocation result;
  result.offsets.assign(function.registers().size(), none);
  std::map<uint32_t, std::vector<uint32_t>> free_places;  // by bytes of a lane
  std::multimap<uint32_t, uint32_t> active;               // end of interval, register
  uint32_t live_bytes = 0;
  for (const Interval& interval : find_intervals(function, flow)) {
    // A place is free again behind the last use; an instruction may read while it writes, so
    // sharing within one instruction is left out.
    while (!active.empty() && active.begin()->first < interval.begin) {
      uint32_t ended = active.begin()->second;
      uint32_t bytes = function.bytes_of(ended);
      free_places[bytes].push_back(result.offsets[ended]);
      live_bytes -= bytes;
      active.erase(active.begin());
    }
    uint32_t bytes = function.bytes_of(interval.reg);
    std::vector<uint32_t>& places = free_places[bytes];
    if (places.empty()) {
      result.offsets[interval.reg] = result.frame_bytes;
      result.frame_bytes += frame_bytes_of(bytes);
    } else {
      result.offsets[interval.reg] = places.back();
      places.pop_back();
    }
    active.emplace(interval.end, interval.reg);
    live_bytes += bytes;
    result.live_bytes_max = std::max(result.live_bytes_max, live_bytes);
  }
  return result;
}

}  // namespace fargpu::softgpu::program
