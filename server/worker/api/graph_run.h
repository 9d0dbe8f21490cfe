#pragma once
// One launch of an attended graph.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "server/worker/graph/graph_plan.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

/// Goes through a plan step by step: fetches what a piece reads from the client, gives the piece to the driver, sends
/// what it wrote, lets the client run a function and waits for its answer. Meanwhile the launch holds its stream, and
/// what waits for its events.
class GraphRun : public std::enable_shared_from_this<GraphRun> {
 public:
  /// `done` is the number of the callback that tells the client of the end.
  GraphRun(Session& session, std::shared_ptr<GraphPlan> plan, const CallId& call, std::uint64_t stream,
           std::uint64_t done)
      : session_(session), plan_(std::move(plan)), call_(call), stream_(stream), done_(done) {}

  /// Begins when everything that is held back before it is done. `graph`, which is `exec`, remembers its last launch.
  void launch(StreamState& stream, AttendedGraph& graph, std::uint64_t exec);
  /// Tells the client of the end of a launch, or of one that cannot be.
  static void announce(Session& session, StreamState* stream, std::uint64_t done);

 private:
  void begin();
  void next();
  void fetch(const GraphPlan::Step& step);
  void fetch(const GraphPlan::Step& step, std::uint64_t part);
  void deliver(const GraphPlan::Write& write);
  void fetched(const GraphPlan::Step& step, CUresult result);
  void submit(const GraphPlan::Step& step);
  void call(const GraphPlan::Step& step);
  void end(CUresult result);
  // The stream, with its context current; null if it is gone.
  StreamState* stream();

  Session& session_;
  const std::shared_ptr<GraphPlan> plan_;
  const CallId call_;
  const std::uint64_t stream_;
  const std::uint64_t done_;
  std::size_t step_ = 0;
  std::size_t missing_ = 0;  // parts still to be fetched for the step
  CUresult fetched_ = CUDA_SUCCESS;
  std::map<std::uint64_t, std::vector<std::byte>> before_;  // what parts held that may be copied to, by their numbers
  std::uint64_t held_ = 0;                                  // the stream
  std::uint64_t running_ = 0;                               // the graph, until the GPU is done with it
};

}  // namespace fargpu::server
