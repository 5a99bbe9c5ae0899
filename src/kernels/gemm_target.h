#pragma once
/// The intrinsics, and regions that are compiled for an instruction set while the file keeps the baseline flags. Standard and intrinsics headers come
/// before the region; inside it only code in anonymous namespaces, no lambdas (clang gives them no target) and no templates of the standard library
/// (the linker could choose their instance for baseline code). PLAIT_UNROLL before a loop of a small constant count: its arrays of vectors stay in
/// registers. Example: PLAIT_TARGET_BEGIN("avx2,fma,f16c") ... PLAIT_TARGET_END

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12: its own _mm512_undefined_ps() and the like
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define PLAIT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define PLAIT_TARGET_BEGIN(features) PLAIT_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define PLAIT_TARGET_END PLAIT_PRAGMA(clang attribute pop)
#define PLAIT_UNROLL PLAIT_PRAGMA(unroll)
#else
#define PLAIT_TARGET_BEGIN(features) PLAIT_PRAGMA(GCC push_options) PLAIT_PRAGMA(GCC target(features))
#define PLAIT_TARGET_END PLAIT_PRAGMA(GCC pop_options)
#define PLAIT_UNROLL PLAIT_PRAGMA(GCC unroll 32)
#endif
