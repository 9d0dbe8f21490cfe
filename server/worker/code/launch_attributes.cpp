#include "launch_attributes.h"

#include <cstring>

#include "cuda_facts.h"

namespace fargpu::server {
namespace {

constexpr unsigned attributes_max = 32;
constexpr unsigned words_max = sizeof(CUlaunchAttributeValue) / 8;

}  // namespace

CUresult read_attribute(Objects& objects, wire::LaunchAttribute::Reader in, CUlaunchAttribute& out) {
  std::memset(&out, 0, sizeof(out));
  out.id = static_cast<CUlaunchAttributeID>(in.getAttribute());
  const LaunchAttributeFacts* const facts = launch_attribute_facts(out.id);
  const auto in_words = in.getWords();
  if (!facts || in_words.size() > words_max) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t words[words_max] = {};
  for (unsigned i = 0; i < in_words.size(); ++i) words[i] = in_words[i];
  if (facts->holds_event) {
    CUevent event{};
    if (in.getHandle() != 0 && !objects.resolve(HandleKind::event, in.getHandle(), event))
      return CUDA_ERROR_INVALID_HANDLE;
    words[0] = reinterpret_cast<std::uint64_t>(event);
  }
  std::memcpy(&out.value, words, facts->bytes);
  return CUDA_SUCCESS;
}

CUresult read_attributes(Objects& objects, capnp::List<wire::LaunchAttribute>::Reader in,
                         std::vector<CUlaunchAttribute>& out) {
  if (in.size() > attributes_max) return CUDA_ERROR_INVALID_VALUE;
  for (const auto item : in)
    if (const CUresult bad = read_attribute(objects, item, out.emplace_back()); bad != CUDA_SUCCESS) return bad;
  return CUDA_SUCCESS;
}

CUresult write_attribute(Objects& objects, const CUlaunchAttribute& attribute, wire::LaunchAttribute::Builder out) {
  const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
  if (!facts) return CUDA_ERROR_INVALID_VALUE;
  out.setAttribute(attribute.id);
  std::uint64_t words[words_max] = {};
  std::memcpy(words, &attribute.value, facts->bytes);
  if (facts->holds_event) {
    out.setHandle(objects.event_handle(reinterpret_cast<CUevent>(words[0])));
    words[0] = 0;
  }
  const auto used = static_cast<unsigned>((facts->bytes + 7) / 8);
  auto list = out.initWords(used);
  for (unsigned i = 0; i < used; ++i) list.set(i, words[i]);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::server
