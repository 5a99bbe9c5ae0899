#include "plait/env.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace plait {
namespace {

/// Sets a variable for one test and puts the old value back.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    was_set_ = std::getenv(name) != nullptr;
    setenv(name, value, 1);
  }
  ~ScopedEnv() { was_set_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* name_;
  std::string old_;
  bool was_set_ = false;
};

TEST(Env, ReadsEveryKnobAfresh) {
  ScopedEnv kernel("PLAIT_KERNEL", "avx2");
  ScopedEnv threads("PLAIT_THREADS", "3");
  ScopedEnv timeout("PLAIT_TIMEOUT", "2.5");
  ScopedEnv spin("PLAIT_SPIN_US", "0");
  ScopedEnv pages("PLAIT_HUGE_PAGES", "0");
  ScopedEnv level("PLAIT_LOG", "debug");
  ScopedEnv job("PLAIT_JOB", "job-7_a.b");
  ScopedEnv host("PLAIT_HOST_ID", "host1");
  ScopedEnv dump("PLAIT_DUMP", "out/state of ranks.txt");
  Result<Env> env = Env::read();
  ASSERT_TRUE(env.ok()) << env.status().to_string();
  EXPECT_EQ(env->kernel, "avx2");
  EXPECT_EQ(env->threads, 3);
  EXPECT_EQ(env->timeout_s, 2.5);
  EXPECT_EQ(env->spin_us, 0);
  EXPECT_FALSE(env->huge_pages);
  EXPECT_EQ(env->log_level, "debug");
  EXPECT_EQ(env->job, "job-7_a.b");
  EXPECT_EQ(env->host_id, "host1");
  EXPECT_EQ(env->dump, "out/state of ranks.txt");
  ScopedEnv again("PLAIT_THREADS", "4");
  EXPECT_EQ(Env::read()->threads, 4);
}

TEST(Env, AnEmptyVariableCountsAsUnset) {
  ScopedEnv threads("PLAIT_THREADS", "");
  ASSERT_TRUE(Env::read().ok());
  EXPECT_EQ(Env::read()->threads, Env{}.threads);
}

TEST(Env, MalformedValuesAreErrorsThatNameVariableValueAndRule) {
  struct Case {
    const char* name;
    const char* value;
    const char* rule;
  };
  for (Case c : std::vector<Case>{{"PLAIT_THREADS", "four", "whole number"},
                                  {"PLAIT_THREADS", "-1", "whole number"},
                                  {"PLAIT_THREADS", "4 ", "whole number"},
                                  {"PLAIT_THREADS", "99999999999999999999", "4096"},
                                  {"PLAIT_TIMEOUT", "0", "seconds"},
                                  {"PLAIT_TIMEOUT", "nan", "seconds"},
                                  {"PLAIT_TIMEOUT", "inf", "seconds"},
                                  {"PLAIT_TIMEOUT", "5s", "seconds"},
                                  {"PLAIT_SPIN_US", "1.5", "whole number"},
                                  {"PLAIT_HUGE_PAGES", "yes", "0 or 1"},
                                  {"PLAIT_LOG", "loud", "error, warning, info or debug"},
                                  {"PLAIT_JOB", "a/b", "letters"},
                                  {"PLAIT_HOST_ID", "a b", "letters"}}) {
    ScopedEnv variable(c.name, c.value);
    Result<Env> env = Env::read();
    ASSERT_FALSE(env.ok()) << c.name << "=" << c.value;
    EXPECT_EQ(env.status().code(), StatusCode::invalid_argument);
    for (const char* part : {c.name, c.value, c.rule}) EXPECT_NE(env.status().message().find(part), std::string::npos) << env.status().message();
  }
}

TEST(Env, KnobsListDefaultsAndTheValueInForce) {
  ScopedEnv spin("PLAIT_SPIN_US", "7");
  ScopedEnv threads("PLAIT_THREADS", "many");
  bool saw_spin = false;
  for (const EnvKnob& knob : env_knobs()) {
    EXPECT_EQ(knob.name.rfind("PLAIT_", 0), 0U);
    EXPECT_FALSE(knob.text.empty());
    if (knob.name == "PLAIT_SPIN_US") {
      saw_spin = true;
      EXPECT_EQ(knob.default_value, "20");
      EXPECT_EQ(knob.current, "7");
    }
    if (knob.name == "PLAIT_THREADS") {
      EXPECT_EQ(knob.current, "many (malformed)");
    }
  }
  EXPECT_TRUE(saw_spin);
}

}  // namespace
}  // namespace plait
