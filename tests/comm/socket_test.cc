// Messages with descriptors between two ends of a socket pair.

#include "comm/shm/socket.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "comm/deadline.h"
#include "support/processes.h"

namespace plait::test {
namespace {

using comm::shm::UniqueFd;

struct Message {
  int number = 0;
};

class SocketTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(comm::shm::make_pair(a_, b_), 0); }
  int send(const UniqueFd& from, int number, std::vector<int> descriptors = {}) {
    return comm::shm::send_message(from.get(), comm::shm::bytes_of(Message{number}), descriptors, comm::deadline_after(10));
  }
  int receive(const UniqueFd& at, Message& message, double timeout_s = 10) {
    return comm::shm::receive_message(at.get(), comm::shm::writable_bytes_of(message), descriptors_, comm::deadline_after(timeout_s));
  }
  UniqueFd a_;
  UniqueFd b_;
  std::vector<UniqueFd> descriptors_;
};

TEST_F(SocketTest, DescriptorsTravelWithTheirMessage) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  ASSERT_EQ(send(a_, 1), 0);
  ASSERT_EQ(send(a_, 2, {write_end.get(), read_end.get()}), 0);
  write_end.reset();
  Message message;
  ASSERT_EQ(receive(b_, message), 0);
  EXPECT_EQ(message.number, 1);
  EXPECT_TRUE(descriptors_.empty());
  ASSERT_EQ(receive(b_, message), 0);
  EXPECT_EQ(message.number, 2);
  ASSERT_EQ(descriptors_.size(), 2U);
  ASSERT_EQ(write(descriptors_[0].get(), "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(read(read_end.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(SocketTest, WhatAnEndSentBeforeItClosedArrives) {
  Message message;
  ASSERT_EQ(send(a_, 5), 0);
  ASSERT_EQ(send(b_, 6), 0);  // never read: closing then resets the connection
  a_.reset();
  ASSERT_EQ(receive(b_, message), 0);
  EXPECT_EQ(message.number, 5);
  EXPECT_EQ(receive(b_, message), ECONNRESET);
  EXPECT_EQ(send(b_, 7), ECONNRESET);
}

TEST_F(SocketTest, AMessageOfAnotherSizeIsAnError) {
  ASSERT_EQ(send(a_, 5), 0);
  std::array<std::byte, 3> small{};
  EXPECT_EQ(comm::shm::receive_message(b_.get(), small, descriptors_, comm::deadline_after(10)), EPROTO);
  ASSERT_EQ(comm::shm::send_message(a_.get(), small, {}, comm::deadline_after(10)), 0);
  Message message;
  EXPECT_EQ(receive(b_, message), EPROTO);
}

TEST_F(SocketTest, WaitingEndsAtTheDeadline) {
  Message message;
  EXPECT_EQ(receive(b_, message, 0.01), ETIMEDOUT);
  int sent = 0;
  while (sent < 100'000 && comm::shm::send_message(a_.get(), comm::shm::bytes_of(message), {}, 0) == 0) ++sent;
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, 100'000);
}

TEST(SocketLimitTest, NoRoomForADescriptorIsSaid) {
  Processes processes(1, [](int) -> Status {
    UniqueFd a;
    UniqueFd b;
    if (comm::shm::make_pair(a, b) != 0) return Status::internal("pair");
    const std::array<int, 1> descriptors = {a.get()};
    Message message;
    comm::shm::send_message(a.get(), comm::shm::bytes_of(message), descriptors, comm::deadline_after(10));
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    std::vector<UniqueFd> received;
    const int error = comm::shm::receive_message(b.get(), comm::shm::writable_bytes_of(message), received, comm::deadline_after(10));
    setrlimit(RLIMIT_NOFILE, &before);  // sanitizers need descriptors for their checks
    return error == EMFILE ? Status() : Status::internal("error " + std::to_string(error));
  });
  EXPECT_EQ(processes.wait()[0].to_string(), "ok");
}

}  // namespace
}  // namespace plait::test
