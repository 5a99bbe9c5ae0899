// fmt's functions, compiled once. All other files include fmt without FMT_HEADER_ONLY, which makes them build six times faster, and find
// the functions here: no library of fmt's is linked.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <string>

namespace plait {

// An inline function is emitted for other files only where its address is taken.
extern const void* const fmt_functions[];
[[gnu::used]] const void* const fmt_functions[] = {
    reinterpret_cast<const void*>(static_cast<std::string (*)(fmt::string_view, fmt::format_args)>(&fmt::vformat)),
    reinterpret_cast<const void*>(&fmt::detail::assert_fail),
    reinterpret_cast<const void*>(&fmt::detail::throw_format_error),
    reinterpret_cast<const void*>(static_cast<bool (*)(uint32_t)>(&fmt::detail::is_printable)),
    reinterpret_cast<const void*>(&fmt::detail::thousands_sep_impl<char>),
};

}  // namespace plait
