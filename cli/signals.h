#pragma once
/// Ctrl-C and SIGTERM: a flag that long calls poll, and an end that is certain.

namespace plait::cli {

enum class InterruptPolicy {
  /// This process decides itself: a second signal, or 5 s after the first, ends it with exit code 130.
  alone,
  /// A launcher watches and kills if need be: signals only raise the flag.
  supervised,
};
void install_interrupt_handlers(InterruptPolicy policy);

/// True once SIGINT or SIGTERM has come.
bool interrupted();

}  // namespace plait::cli
