#include <gtest/gtest.h>

#include "plait/grouped_matmul.h"

namespace plait {
namespace {

using List = std::vector<int64_t>;

List counts_of(const List& list, GroupListType type, int64_t num_groups, int64_t max_rows) {
  Result<List> counts = group_counts(list, type, num_groups, max_rows);
  EXPECT_TRUE(counts.ok()) << counts.status().to_string();
  return counts.ok() ? *counts : List{};
}

void expect_error(const List& list, GroupListType type, int64_t num_groups, int64_t max_rows, std::initializer_list<const char*> parts) {
  Result<List> counts = group_counts(list, type, num_groups, max_rows);
  ASSERT_FALSE(counts.ok());
  EXPECT_EQ(counts.status().code(), StatusCode::invalid_argument);
  const std::string& text = counts.status().message();
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks " << part;
}

TEST(GroupList, ThreeTypesOfOneGrouping) {
  EXPECT_EQ(counts_of({2, 2, 5}, GroupListType::cumulative, 3, 6), (List{2, 0, 3}));
  EXPECT_EQ(counts_of({2, 0, 3}, GroupListType::counts, 3, 6), (List{2, 0, 3}));
  EXPECT_EQ(counts_of({0, 2, 2, 3}, GroupListType::pairs, 3, 6), (List{2, 0, 3}));
  EXPECT_EQ(counts_of({0, 2, 1, 0, 2, 3}, GroupListType::pairs, 3, 5), (List{2, 0, 3}));
}

TEST(GroupList, NothingIsGuessedFromTheValues) {
  EXPECT_EQ(counts_of({2, 2}, GroupListType::cumulative, 2, 4), (List{2, 0}));
  EXPECT_EQ(counts_of({2, 2}, GroupListType::counts, 2, 4), (List{2, 2}));
}

TEST(GroupList, EmptyGroupsAndEmptyLists) {
  EXPECT_EQ(counts_of({0, 0}, GroupListType::cumulative, 2, 0), (List{0, 0}));
  EXPECT_EQ(counts_of({0, 0}, GroupListType::counts, 2, 0), (List{0, 0}));
  EXPECT_EQ(counts_of({}, GroupListType::pairs, 2, 9), (List{0, 0}));
}

TEST(GroupList, ErrorsNameIndexAndBothValues) {
  expect_error({3, 2}, GroupListType::cumulative, 2, 4, {"end 2 at item 1", "less than 3"});
  expect_error({2, 5}, GroupListType::cumulative, 2, 4, {"item 1", "5 > 4"});
  expect_error({-1, 2}, GroupListType::cumulative, 2, 4, {"end -1 at item 0", "less than 0"});
  expect_error({-1, 5}, GroupListType::counts, 2, 4, {"item 0", "-1"});
  expect_error({2, 3}, GroupListType::counts, 2, 4, {"item 1", "2 + 3 > 4"});
  expect_error({1, 1, 1, 1}, GroupListType::counts, 2, 4, {"4 counts", "2 needed"});
  expect_error({1}, GroupListType::cumulative, 2, 4, {"1 cumulative", "2 needed"});
  expect_error({0, 1, 1}, GroupListType::pairs, 2, 4, {"3 numbers", "even"});
  expect_error({1, 1, 0, 1}, GroupListType::pairs, 2, 4, {"item 2", "group 0 after group 1"});
  expect_error({0, 1, 0, 1}, GroupListType::pairs, 2, 4, {"item 2", "group 0 after group 0"});
  expect_error({2, 1}, GroupListType::pairs, 2, 4, {"item 0", "group 2", "[0, 2)"});
  expect_error({0, 3, 1, 2}, GroupListType::pairs, 2, 4, {"item 3", "3 + 2 > 4"});
  expect_error({0, -2}, GroupListType::pairs, 2, 4, {"item 1", "-2"});
  expect_error({0}, static_cast<GroupListType>(7), 1, 1, {"7", "0 (cumulative ends)"});
}

TEST(GroupList, HugeCountsDoNotOverflow) {
  int64_t huge = int64_t{1} << 62;
  expect_error({huge, huge, huge}, GroupListType::counts, 3, 4, {"item 0"});
  expect_error({1, huge, huge}, GroupListType::counts, 3, huge, {"item 1"});
}

}  // namespace
}  // namespace plait
