#pragma once
// Whether this is a sanitizer's build.

namespace fargpu::server {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Their shadow memory lies where mappings would go, and their reports start programs.
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace fargpu::server
