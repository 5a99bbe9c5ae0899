#pragma once
/// Coefficients of our exp and log: minimax fits of our own to the relative error, rounded to float32 one by one (lowest power first,
/// the rest fitted again each time).

#include <cstdint>

namespace plait::kernels {

inline constexpr float log2_e = 0x1.715476p+0F;
inline constexpr float ln2_high = 0x1.62e430p-1F;  ///< ln 2 rounded to float32
inline constexpr float ln2_low = -0x1.05c610p-29F;

/// exp(r) = 1 + r + r^2 (c0 + c1 r + ... ) on |r| <= ln(2) / 2, relative error below 3.2e-9 before rounding.
inline constexpr float exp_coefficients[] = {0x1.fffffcp-2F, 0x1.555492p-3F, 0x1.5558bcp-5F, 0x1.1239c6p-7F, 0x1.6a4154p-10F};
/// Outside of [exp_low, exp_high] the result is 0 or infinity.
inline constexpr float exp_low = -104.0F;
inline constexpr float exp_high = 89.0F;

/// log(1 + f) = f - f^2 / 2 + f^3 (c0 + c1 f + ...) on sqrt(1/2) <= 1 + f < sqrt(2), relative error below 6e-9 before rounding.
inline constexpr float log_coefficients[] = {0x1.555554p-2F, -0x1.00022ap-2F, 0x1.99a028p-3F, -0x1.547164p-3F,
                                             0x1.22d710p-3F, -0x1.0d8bfap-3F, 0x1.0573b2p-3F, -0x1.38c9fap-4F};
inline constexpr uint32_t sqrt_half_bits = 0x3f3504f3U;  ///< sqrt(1/2) as float32

}  // namespace plait::kernels
