#include "framework/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace furlong {
namespace {

TEST(Log, PrintsOneLineWithoutControlCharacters) {
  configure_logging("info", "[rank 3] ");
  ::testing::internal::CaptureStderr();
  log_warn("the tensor {}", "a\x1b[31m\nb \xc3\xa9 \x9b");
  const std::string line = ::testing::internal::GetCapturedStderr();
  configure_logging("info");
  EXPECT_EQ(line, "[rank 3] warning: the tensor a\\x1b[31m\\x0ab \xc3\xa9 \\x9b\n");
}

}  // namespace
}  // namespace furlong
