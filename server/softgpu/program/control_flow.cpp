#include "program/control_flow.h"

#include <algorithm>

namespace fargpu::softgpu::program {
namespace {

bool ends_block(const IrInstruction& instruction) { return instruction.flow != Flow::next; }

bool falls_through(const IrInstruction& instruction) {
  return instruction.flow == Flow::next || instruction.guard != none;
}

std::vector<bool> find_leaders(const IrFunction& function) {
  const auto& code = function.instructions();
  std::vector<bool> is_leader(code.size() + 1, false);
  if (!code.empty()) is_leader[0] = true;
  for (size_t i = 0; i < code.size(); ++i) {
    if (ends_block(code[i])) is_leader[i + 1] = true;
    if (code[i].flow == Flow::jump) is_leader[function.label_position(code[i].target)] = true;
    for (uint32_t label : code[i].targets) is_leader[function.label_position(label)] = true;
  }
  return is_leader;
}

void cut_into_blocks(const IrFunction& function, ControlFlow& flow) {
  std::vector<bool> is_leader = find_leaders(function);
  size_t count = function.instructions().size();
  flow.block_of_instruction.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (is_leader[i]) flow.blocks.push_back({.first = i, .successors = {}, .predecessors = {}});
    flow.blocks.back().last = i + 1;
    flow.block_of_instruction[i] = static_cast<uint32_t>(flow.blocks.size() - 1);
  }
}

void connect(const IrFunction& function, ControlFlow& flow) {
  auto block_at = [&](uint32_t label) { return flow.block_of_instruction[function.label_position(label)]; };
  for (uint32_t b = 0; b < flow.blocks.size(); ++b) {
    BasicBlock& block = flow.blocks[b];
    const IrInstruction& end = function.instructions()[block.last - 1];
    auto add = [&](uint32_t to) {
      if (std::find(block.successors.begin(), block.successors.end(), to) == block.successors.end())
        block.successors.push_back(to);
    };
    if (falls_through(end) && b + 1 < flow.blocks.size()) add(b + 1);
    if (end.flow == Flow::jump) add(block_at(end.target));
    for (uint32_t label : end.targets) add(block_at(label));
  }
  std::vector<uint32_t> pending = {0};
  if (flow.blocks.empty()) return;
  flow.blocks[0].is_reachable = true;
  while (!pending.empty()) {
    uint32_t b = pending.back();
    pending.pop_back();
    for (uint32_t to : flow.blocks[b].successors) {
      flow.blocks[to].predecessors.push_back(b);
      if (flow.blocks[to].is_reachable) continue;
      flow.blocks[to].is_reachable = true;
      pending.push_back(to);
    }
  }
}

/// Immediate post-dominators of the blocks from which `root` can be reached and that have none
/// yet, by the method of Cooper, Harvey and Kennedy.
class PostDominators {
 public:
  PostDominators(const ControlFlow& flow, std::vector<uint32_t>& result)
      : flow_(flow), result_(result), number_(flow.blocks.size(), none) {}

  void compute(uint32_t root) {
    std::vector<uint32_t> order = reverse_postorder(root);
    for (uint32_t i = 0; i < order.size(); ++i) number_[order[i]] = i;
    result_[root] = root;
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (uint32_t b : order) {
        if (b == root) continue;
        uint32_t common = none;
        for (uint32_t to : flow_.blocks[b].successors) {
          if (number_[to] == none || result_[to] == none) continue;
          common = common == none ? to : intersect(common, to);
        }
        if (common != result_[b]) {
          result_[b] = common;
          has_changed = true;
        }
      }
    }
  }

 private:
  /// Of the reversed graph, over blocks that have no post-dominator yet.
  std::vector<uint32_t> reverse_postorder(uint32_t root) {
    std::vector<uint32_t> order;
    std::vector<std::pair<uint32_t, size_t>> stack = {{root, 0}};
    std::vector<bool> is_seen(flow_.blocks.size(), false);
    is_seen[root] = true;
    while (!stack.empty()) {
      auto& [block, next] = stack.back();
      const auto& from = flow_.blocks[block].predecessors;
      if (next == from.size()) {
        order.push_back(block);
        stack.pop_back();
        continue;
      }
      uint32_t predecessor = from[next++];
      if (is_seen[predecessor] || result_[predecessor] != none) continue;
      is_seen[predecessor] = true;
      stack.push_back({predecessor, 0});
    }
    std::reverse(order.begin(), order.end());
    return order;
  }

  uint32_t intersect(uint32_t a, uint32_t b) const {
    while (a != b) {
      while (number_[a] > number_[b]) a = result_[a];
      while (number_[b] > number_[a]) b = result_[b];
    }
    return a;
  }

  const ControlFlow& flow_;
  std::vector<uint32_t>& result_;
  std::vector<uint32_t> number_;
};

/// Blocks at which threads end, the main one first: returns before traps, later ones before
/// earlier ones; then all others, for loops without end.
std::vector<uint32_t> possible_roots(const IrFunction& function, const ControlFlow& flow) {
  std::vector<uint32_t> exits, stops, others;
  for (uint32_t b = static_cast<uint32_t>(flow.blocks.size()); b-- > 0;) {
    if (!flow.blocks[b].is_reachable) continue;
    Flow end = function.instructions()[flow.blocks[b].last - 1].flow;
    bool is_end = flow.blocks[b].successors.empty();
    if (is_end && (end == Flow::exit || end == Flow::give_back)) exits.push_back(b);
    else if (is_end) stops.push_back(b);
    else others.push_back(b);
  }
  exits.insert(exits.end(), stops.begin(), stops.end());
  exits.insert(exits.end(), others.begin(), others.end());
  return exits;
}

bool only_exits(const IrFunction& function, const BasicBlock& block) {
  const IrInstruction& first = function.instructions()[block.first];
  return first.flow == Flow::exit && first.guard == none;
}

}  // namespace

ControlFlow analyze_control_flow(const IrFunction& function, bool is_kernel) {
  ControlFlow flow;
  cut_into_blocks(function, flow);
  connect(function, flow);

  std::vector<uint32_t> post_dominator(flow.blocks.size(), none);
  for (uint32_t root : possible_roots(function, flow))
    if (post_dominator[root] == none) PostDominators(flow, post_dominator).compute(root);

  for (uint32_t b = 0; b < flow.blocks.size(); ++b) {
    uint32_t meeting = post_dominator[b];
    if (meeting == none || meeting == b) continue;
    // Waiting only to exit together would keep the lanes' places occupied.
    if (is_kernel && only_exits(function, flow.blocks[meeting])) continue;
    flow.blocks[b].meeting = meeting;
  }
  return flow;
}

}  // namespace fargpu::softgpu::program
