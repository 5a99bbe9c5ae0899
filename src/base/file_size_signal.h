#pragma once
/// Writing files under RLIMIT_FSIZE.

#include <signal.h>

#include <ctime>

namespace plait {

/// Keeps SIGXFSZ, which a file beyond RLIMIT_FSIZE raises, from ending the process; the call then fails with EFBIG.
class FileSizeSignalBlock {
 public:
  FileSizeSignalBlock() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlock() {
    const timespec now{};
    if (sigismember(&before_, SIGXFSZ) == 0) {
      while (sigtimedwait(&signal_, nullptr, &now) > 0) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlock(const FileSizeSignalBlock&) = delete;
  FileSizeSignalBlock& operator=(const FileSizeSignalBlock&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
};

}  // namespace plait
