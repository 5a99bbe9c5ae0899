#include "plait/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/status_macros.h"

namespace plait {
namespace {

TEST(Status, ShowsCodeMessageAndCulprit) {
  EXPECT_EQ(Status().to_string(), "ok");
  EXPECT_EQ(Status::invalid_argument("topk is 9; at most 8").to_string(), "invalid argument: topk is 9; at most 8");
  Status status = Status::timeout("rank 2 did not come").at_rank(2).in_stage("dispatch").at_expert(5);
  EXPECT_EQ(status.to_string(), "timeout: rank 2 did not come (rank 2, stage dispatch, expert 5)");
  EXPECT_EQ(Status::peer_lost("gone").at_rank(0).to_string(), "peer lost: gone (rank 0)");
}

TEST(Status, ExitCodes) {
  EXPECT_EQ(exit_code(Status()), 0);
  EXPECT_EQ(exit_code(Status::invalid_argument("")), 2);
  EXPECT_EQ(exit_code(Status::unavailable("")), 2);
  EXPECT_EQ(exit_code(Status::resource_exhausted("")), 3);
  EXPECT_EQ(exit_code(Status::timeout("")), 3);
  EXPECT_EQ(exit_code(Status::peer_lost("")), 3);
  EXPECT_EQ(exit_code(Status::aborted("")), 3);
  EXPECT_EQ(exit_code(Status::internal("")), 3);
  EXPECT_EQ(exit_code(Status::interrupted("")), 130);
}

Result<std::unique_ptr<int>> half(int n) {
  if (n % 2 != 0) return Status::invalid_argument(std::to_string(n) + " is odd");
  return std::make_unique<int>(n / 2);
}
Status check_even(int n) {
  PLAIT_RETURN_IF_ERROR(half(n).status());
  return {};
}
Result<int> quarter(int n) {
  PLAIT_ASSIGN_OR_RETURN(std::unique_ptr<int> once, half(n));
  PLAIT_ASSIGN_OR_RETURN(auto twice, half(*once));
  return *twice;
}

TEST(Result, CarriesValueOrStatusThroughTheMacros) {
  EXPECT_EQ(quarter(12).take(), 3);
  EXPECT_EQ(quarter(6).status().to_string(), "invalid argument: 3 is odd");
  EXPECT_TRUE(check_even(4).ok());
  EXPECT_EQ(check_even(5).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace plait
