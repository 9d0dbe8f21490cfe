#pragma once
// Making the call of a case and telling what came of it.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cases.h"

namespace answers {

struct Answer {
  std::string text;     ///< empty: the case does not exist here
  bool broken = false;  ///< the process cannot be used for further cases
};

/// cuInit, and the primary context of device 0. Throws NoFixture.
void begin_process();
/// Any case but those after an error and before cuInit.
Answer play(const Case& played);
/// A case for which nothing was initialised.
Answer play_before_init(const Case& played);
/// Cases after an error, all at once: first everything they need is made, then the error. Says when each begins and
/// what came of it.
void play_after_error(const std::vector<Case>& played, const std::function<void(std::size_t)>& begins,
                      const std::function<void(std::size_t, const Answer&)>& ends);

}  // namespace answers
