#include "asides.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "full_texts.h"
#include "server/worker/objects/handles.h"

namespace fargpu::server {

struct Asides::Aside {
  const CallId id;
  const CUcontext cuda;
  const std::uint32_t context;  // its id; 0 without one
  const int device;             // -1 without a context
  const Work work;
  const Settle settle;
  bool repeats = false;
  const std::function<void()> again;  // carries out the call anew, in place of `work`
  BlockingCalls* threads = nullptr;
  CUresult result = CUDA_ERROR_UNKNOWN;
};

Outcome Asides::run(Call& call, Work work, Settle settle, Repeats repeats) {
  return start(call, call.id().context != 0 ? contexts_.current() : nullptr, blocking_calls_, std::move(work),
               std::move(settle), repeats);
}

Outcome Asides::run_on_link_thread(Call& call, Work work, Settle settle) {
  return start(call, contexts_.current(), link_calls_, std::move(work), std::move(settle), Repeats::nothing);
}

Outcome Asides::start(Call& call, const ContextState* within, BlockingCalls& threads, Work work, Settle settle,
                      Repeats repeats) {
  // A client that awaits its loads never has so many.
  constexpr std::size_t under_way_max = 4096;
  if (threads.under_way() >= under_way_max) threads.wait_for_all();
  // Where nobody makes room it is for the last time.
  auto again = repeats == Repeats::call && residency_.may_wait() ? ordering_.keep(call) : nullptr;
  make(std::make_shared<Aside>(Aside{.id = call.id(),
                                     .cuda = within ? within->cuda : nullptr,
                                     .context = within ? within->id : 0,
                                     .device = within ? within->device : -1,
                                     .work = std::move(work),
                                     .settle = std::move(settle),
                                     .repeats = repeats == Repeats::work || again,
                                     .again = std::move(again),
                                     .threads = &threads}));
  return Outcome::later();
}

std::optional<Outcome> Asides::behind(Call& call, ContextState& context) {
  if (!any_in(context)) return std::nullopt;
  auto again = ordering_.keep(call);
  if (!again) return CUDA_ERROR_OUT_OF_MEMORY;
  retries_.add([this, id = context.id, again = std::move(again)] {
    ContextState* const there = contexts_.find(id);
    if (there && any_in(*there)) return false;
    again();
    return true;
  });
  return Outcome::later();
}

// Work without a context may use the device's primary one.
bool Asides::any_in(ContextState& context) const {
  const auto all = context.green ? std::vector{&context} : contexts_.with_greens(context);
  return (context.primary && used_.contains(0)) ||
         std::any_of(all.begin(), all.end(), [&](const ContextState* one) { return used_.contains(one->id); });
}

Outcome Asides::run_first(Call& call, ContextState& context, std::function<void()> work, std::function<void()> done) {
  auto again = ordering_.keep(call);
  if (!again) return CUDA_ERROR_OUT_OF_MEMORY;
  blocking_calls_.run(
      [this, cuda = context.cuda, work = std::move(work)] {
        driver_.cuCtxSetCurrent(cuda);
        work();
      },
      [this, kept = keep_open(context.id), done = std::move(done), again = std::move(again)] {
        done();
        behind_first_ = true;
        in_order_(again);
        behind_first_ = false;
      });
  return Outcome::later();
}

std::shared_ptr<const void> Asides::keep_open(std::uint32_t context) {
  return {nullptr, [this, place = used_.insert(context)](const void*) { used_.erase(place); }};
}

void Asides::make(const std::shared_ptr<Aside>& aside) {
  aside->threads->run(
      [this, aside] {
        driver_.cuCtxSetCurrent(aside->cuda);
        aside->result = aside->work();
      },
      [this, aside, kept = keep_open(aside->context)] {
        if (aside->result == CUDA_ERROR_OUT_OF_MEMORY && aside->repeats && aside->device >= 0 && residency_.may_wait())
          return residency_.wait_for_room(
              {contexts_.driver_ordinal(aside->device), Residency::room_for_the_driver},
              aside->again ? aside->again : [this, aside] { repeat(aside); });
        settle(*aside);
      });
}

// Meanwhile another thread of the program may have closed the context.
void Asides::repeat(const std::shared_ptr<Aside>& aside) {
  aside->repeats = residency_.may_wait();  // if not, nobody makes room: for the last time
  if (contexts_.find(aside->id.context)) return make(aside);
  aside->result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  settle(*aside);
}

void Asides::settle(const Aside& aside) {
  // What settles may need the context current again.
  if (ContextState* const owner = contexts_.find(aside.id.context)) contexts_.make_current(*owner);
  MessageWriter writer;
  CUresult outcome = CUDA_ERROR_OUT_OF_MEMORY;
  try {
    outcome = aside.settle(aside.result, writer);
  } catch (const Handles::Exhausted&) {
    prints_.warn(exhausted_text());
  }
  // Some of these calls, such as those that unload code, come back only when work is complete.
  const std::span<const std::byte> reply = writer.finish();
  answer_(aside.id, outcome, {reply.begin(), reply.end()});
}

}  // namespace fargpu::server
