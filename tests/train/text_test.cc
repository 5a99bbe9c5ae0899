#include "train/text.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace plait::train {
namespace {

TEST(Text, WrapsAround) {
  Text text = Text::from_bytes("abc", "test").take();
  EXPECT_EQ(text.size(), 3);
  EXPECT_EQ(text.byte(0), 'a');
  EXPECT_EQ(text.byte(5), 'c');
  EXPECT_EQ(text.byte(3000000000), 'a');
}

TEST(Text, EmptyIsAnErrorThatNamesTheFile) {
  std::string path = testing::TempDir() + "plait_empty_text";
  std::ofstream(path).close();
  auto text = Text::load(path);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(text.status().message().find(path), std::string::npos);
  EXPECT_NE(text.status().message().find("0 bytes"), std::string::npos);
  std::remove(path.c_str());
}

TEST(Text, MissingFileAndDirectoryAreErrors) {
  EXPECT_FALSE(Text::load(testing::TempDir() + "no_such_text").ok());
  EXPECT_FALSE(Text::load(testing::TempDir()).ok());
}

TEST(Text, LoadsBytesAsTheyAre) {
  std::string path = testing::TempDir() + "plait_text", bytes("a\0\xff\n", 4);
  std::ofstream(path, std::ios::binary) << bytes;
  auto text = Text::load(path);
  ASSERT_TRUE(text.ok());
  ASSERT_EQ(text->size(), 4);
  EXPECT_EQ(text->byte(1), 0);
  EXPECT_EQ(text->byte(2), 255);
  std::remove(path.c_str());
}

TEST(Text, GeneratedDependsOnTheSeed) {
  Text a = Text::generated(1), b = Text::generated(1), c = Text::generated(2);
  bool all_equal = true, any_different = false;
  for (int64_t i = 0; i < a.size(); ++i) {
    all_equal = all_equal && a.byte(i) == b.byte(i);
    any_different = any_different || a.byte(i) != c.byte(i);
  }
  EXPECT_TRUE(all_equal);
  EXPECT_TRUE(any_different);
}

}  // namespace
}  // namespace plait::train
