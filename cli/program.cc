#include "cli/program.h"

#include <unistd.h>

#include "cli/failure.h"
#include "cli/output.h"
#include "config/case_faults.h"

namespace plait::cli {

int fail(const Program& program, const Status& status) {
  if (program.report_fd >= 0) {
    std::string message = encode_failure(status);
    [[maybe_unused]] ssize_t written = ::write(program.report_fd, message.data(), message.size());
  } else if (status.code() == StatusCode::interrupted) {
    print_note(program.command, "interrupted");
  } else if (status.code() == StatusCode::invalid_argument) {
    print_error(program.command, status.message());
  } else {
    print_error(program.command, status.to_string());
  }
  return exit_code(status);
}

Status check_faults(const Program& program) { return faults_status(program.faults); }

}  // namespace plait::cli
