#include "waits.h"

#include <memory>
#include <utility>
#include <vector>

#include "taken_copies.h"

namespace fargpu::server {
namespace {

/// Calls `done` with the first failure once all of several waits are over.
class Gather {
 public:
  explicit Gather(Completions::Done done) : done_(std::move(done)) {}
  void add() { ++open_; }
  void close(CUresult result) {
    if (result_ == CUDA_SUCCESS) result_ = result;
    if (--open_ == 0) done_(result_);
  }

 private:
  Completions::Done done_;
  std::size_t open_ = 1;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace

void Waits::when_passed(StreamState& stream, Completions::Done done) {
  when_passed(stream, std::move(done), /*for_new_work=*/false);
}

void Waits::when_free(StreamState& stream, Completions::Done done) {
  when_passed(stream, std::move(done), /*for_new_work=*/true);
}

void Waits::when_passed(StreamState& stream, Completions::Done done, bool for_new_work) {
  auto look = [this, handle = stream.handle, id = stream.context->id, done = std::move(done), for_new_work] {
    StreamState* const target = contexts_.stream(handle, id);
    if (!target ||
        (!target->dirty() && target->handle != legacy_stream && !(for_new_work && comes_behind_others(*target)))) {
      completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, done);  // without a target: destroyed meanwhile
    } else if (captures_.capturing(*target)) {
      const auto refuse = [done, counted = behind_captures_](CUresult) { done(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); };
      const auto& before = target->before_capture;
      if (before && !before->over) before->waiting.push_back(refuse);
      else completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, refuse);
    } else {
      contexts_.make_current(*target->context);
      if (for_new_work) ordering_.catch_up(*target);
      completions_.after(*target, Completions::Kind::signal, done);
    }
  };
  ordering_.after_stream(stream, std::move(look));
}

// The driver puts what is recorded on a blocking stream behind the legacy stream's work. A stream that has seen the
// mark of copies comes behind them until they are made.
bool Waits::comes_behind_others(const StreamState& stream) {
  const ContextState& context = *stream.context;
  return (stream.blocking && context.legacy && context.legacy->dirty()) ||
         (!context.copy_marks.empty() && !context.copy_marks.back()->over());
}

void Waits::when_passed(ContextState& context, Completions::Done done) {
  when_passed(context, std::move(done), /*others=*/false);
}

void Waits::when_passed(ContextState& context, Completions::Done done, bool others) {
  const auto look = [this, id = context.id, done = std::move(done)] {
    ContextState* const target = contexts_.find(id);
    auto gather = std::make_shared<Gather>(done);
    for (ContextState* const one : target ? contexts_.with_greens(*target) : std::vector<ContextState*>{}) {
      contexts_.make_current(*one);
      for (StreamState* stream : one->streams) {
        if (!stream->dirty()) continue;
        if (captures_.capturing(*stream)) {  // nothing can be recorded there, but it was given work before
          const auto& before = stream->before_capture;
          if (!before || before->over) continue;
          gather->add();
          before->waiting.push_back([gather, counted = behind_captures_](CUresult result) { gather->close(result); });
          continue;
        }
        gather->add();
        completions_.after(*stream, Completions::Kind::signal, [gather](CUresult result) { gather->close(result); });
      }
    }
    completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, [gather](CUresult result) { gather->close(result); });
  };
  ordering_.after_context(context, look, others);
}

void Waits::when_all_passed(Completions::Done done) {
  auto gather = std::make_shared<Gather>(std::move(done));
  for (ContextState* const context : contexts_.all()) {
    gather->add();
    when_passed(
        *context, [gather](CUresult result) { gather->close(result); }, /*others=*/true);
  }
  completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, [gather](CUresult result) { gather->close(result); });
}

}  // namespace fargpu::server
