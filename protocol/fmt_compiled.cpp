// fmt, compiled once. Debian has it as a shared library, which GPU hosts and strangers' processes need not have, and as
// headers only, which cost every file that formats a message three seconds of compiling.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
template void buffer<char>::append(const char*, const char*);
namespace dragonbox {
template auto to_decimal(float) noexcept -> decimal_fp<float>;
template auto to_decimal(double) noexcept -> decimal_fp<double>;
}  // namespace dragonbox
}  // namespace detail
FMT_END_NAMESPACE
