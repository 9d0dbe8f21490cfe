#include "launch_attributes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "client/call/refusal.h"
#include "cuda_facts.h"

namespace fargpu::client {

CUlaunchAttribute attribute_of(CUlaunchAttributeID id, const CUlaunchAttributeValue* value) {
  CUlaunchAttribute attribute;
  std::memset(&attribute, 0, sizeof(attribute));
  attribute.id = id;
  if (value) attribute.value = *value;
  return attribute;
}

CUresult write_attribute(const HandleMap<Event>& events, const CUlaunchAttribute& attribute,
                         wire::LaunchAttribute::Builder out) {
  const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
  out.setAttribute(attribute.id);
  std::array<std::uint64_t, sizeof(CUlaunchAttributeValue) / 8> words{};
  std::memcpy(words.data(), &attribute.value, facts->bytes);
  if (facts->holds_event) {
    const Handle event(words[0]);
    if (event) {
      Event* const found = events.find(event);
      if (!found) return CUDA_ERROR_INVALID_HANDLE;
      found->recorded_by_work = true;
    }
    out.setHandle(words[0]);
    words[0] = 0;
  }
  const auto used = static_cast<unsigned>((facts->bytes + 7) / 8);
  auto list = out.initWords(used);
  for (unsigned w = 0; w < used; ++w) list.set(w, words[w]);
  return CUDA_SUCCESS;
}

void read_attribute(wire::LaunchAttribute::Reader in, CUlaunchAttributeValue& value) {
  std::memset(&value, 0, sizeof(value));
  const LaunchAttributeFacts* const facts = launch_attribute_facts(static_cast<CUlaunchAttributeID>(in.getAttribute()));
  if (!facts) return;
  std::array<std::uint64_t, sizeof(CUlaunchAttributeValue) / 8> words{};
  const auto list = in.getWords();
  for (unsigned w = 0; w < std::min<std::size_t>(list.size(), words.size()); ++w) words[w] = list[w];
  if (facts->holds_event) words[0] = in.getHandle();
  std::memcpy(&value, words.data(), facts->bytes);
}

CUresult write_attributes(const HandleMap<Event>& events, const CUlaunchAttribute* attributes, unsigned count,
                          capnp::List<wire::LaunchAttribute>::Builder list) {
  for (unsigned i = 0; i < count; ++i) {
    const CUlaunchAttribute& attribute = attributes[i];
    const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
    if (!facts) {
      refuse_use(("launch attribute " + std::to_string(attribute.id)).c_str());
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (const CUresult bad = write_attribute(events, attribute, list[i]); bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client
