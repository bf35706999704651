#include "communication/launch/slurm_nodes.h"

#include <gtest/gtest.h>

#include <random>

#include "framework/core/error.h"
#include "tests/temporary_folder.h"

namespace furlong {
namespace {

using Names = std::vector<std::string>;

Names hosts(const std::string& text) { return expand_slurm_hosts("SLURM_STEP_NODELIST", text); }
std::vector<int> tasks(const std::string& text) {
  return expand_slurm_tasks_per_node("SLURM_STEP_TASKS_PER_NODE", text);
}

std::string refusal(const std::string& text, bool of_hosts = true) {
  return testing::message_of<UserError>([&] {
    if (of_hosts) {
      hosts(text);
    } else {
      tasks(text);
    }
  });
}

TEST(SlurmHosts, ReadsPlainNames) {
  EXPECT_EQ(hosts("login"), (Names{"login"}));
  EXPECT_EQ(hosts("a,b-1.example.org,c_2,17"), (Names{"a", "b-1.example.org", "c_2", "17"}));
}

TEST(SlurmHosts, RangesKeepOrderAndPadding) {
  EXPECT_EQ(hosts("node[01-03,7],gpu-a[1-2]x"), (Names{"node01", "node02", "node03", "node7", "gpu-a1x", "gpu-a2x"}));
  EXPECT_EQ(hosts("n[8-11]"), (Names{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(hosts("n[098-101]"), (Names{"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(hosts("n[08-9]"), (Names{"n08", "n09"}));
  EXPECT_EQ(hosts("n[9,2,5-5]"), (Names{"n9", "n2", "n5"}));
  EXPECT_EQ(hosts("[3-4]"), (Names{"3", "4"}));
  EXPECT_EQ(hosts("n[000000000000000001]"), (Names{"n000000000000000001"}));
}

TEST(SlurmHosts, ExpandsAllCombinationsOfBrackets) {
  EXPECT_EQ(hosts("rack[0-1]-n[1,3].x,y"), (Names{"rack0-n1.x", "rack0-n3.x", "rack1-n1.x", "rack1-n3.x", "y"}));
  EXPECT_EQ(hosts("a[1-2][0-1]"), (Names{"a10", "a11", "a20", "a21"}));
}

TEST(SlurmHosts, EnforcesSlurmsLimits) {
  const Names many = hosts("n[00000-65535]");
  ASSERT_EQ(many.size(), 65536U);
  EXPECT_EQ(many.back(), "n65535");
  EXPECT_NE(refusal("n[0-65536]").find("more than 65536 hosts"), std::string::npos);
  EXPECT_NE(refusal("a[0-65535],b").find("more than 65536 hosts"), std::string::npos);
  EXPECT_NE(refusal("a[0-999]b[0-999]").find("more than 65536 hosts"), std::string::npos);
  EXPECT_NE(refusal("a[0-999999999999999999]").find("more than 65536 hosts"), std::string::npos);
  EXPECT_EQ(hosts(std::string(255, 'a')).front().size(), 255U);
  EXPECT_NE(refusal(std::string(256, 'a')).find("more than 255 characters"), std::string::npos);
  EXPECT_NE(refusal(std::string(255, 'a') + "[1-2]").find("more than 255 characters"), std::string::npos);
  EXPECT_NE(refusal("a[1]" + std::string(254, 'b')).find("more than 255 characters"), std::string::npos);
}

TEST(SlurmHosts, RejectsMalformedListsWithPosition) {
  EXPECT_EQ(refusal("n[3-1]"),
            "SLURM_STEP_NODELIST=n[3-1]: the range 3-1 runs backwards, at character 6; Slurm sets it in every step: "
            "start with srun");
  EXPECT_NE(refusal("").find("expected a host name, at character 1"), std::string::npos);
  EXPECT_NE(refusal("a,").find("expected a host name, at character 3"), std::string::npos);
  EXPECT_NE(refusal(",a").find("expected a host name, at character 1"), std::string::npos);
  EXPECT_NE(refusal("n[1-2").find("expected ']' to close the brackets, at character 6"), std::string::npos);
  EXPECT_NE(refusal("n[]").find("expected a number in brackets, at character 3"), std::string::npos);
  EXPECT_NE(refusal("n[1-]").find("expected a number after '-', at character 5"), std::string::npos);
  EXPECT_NE(refusal("n[1,]").find("expected a number in brackets, at character 5"), std::string::npos);
  EXPECT_NE(refusal("n[a-b]").find("expected a number in brackets"), std::string::npos);
  EXPECT_NE(refusal("n[1[2]]").find("expected ']'"), std::string::npos);
  EXPECT_NE(refusal("n]").find("unexpected character in a host name, at character 2"), std::string::npos);
  EXPECT_NE(refusal("a b").find("unexpected character in a host name"), std::string::npos);
  EXPECT_NE(refusal("n[1000000000000000000]").find("more than 18 digits"), std::string::npos);
  EXPECT_EQ(refusal("a\nb").find('\n'), std::string::npos) << "a message is one line";
}

TEST(SlurmTasksPerNode, ExpandsRepetitions) {
  EXPECT_EQ(tasks("4"), (std::vector<int>{4}));
  EXPECT_EQ(tasks("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(tasks("1,2(x1),3"), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(tasks("8(x65536)").size(), 65536U);
}

TEST(SlurmTasksPerNode, RejectsMalformedTexts) {
  EXPECT_NE(refusal("", false).find("SLURM_STEP_TASKS_PER_NODE=: expected a number for tasks, at character 1"),
            std::string::npos);
  EXPECT_NE(refusal("2,", false).find("expected a number for tasks, at character 3"), std::string::npos);
  EXPECT_NE(refusal("0", false).find("0 is out of range, expected 1 to 1000000"), std::string::npos);
  EXPECT_NE(refusal("-1", false).find("expected a number"), std::string::npos);
  EXPECT_NE(refusal("2(3)", false).find("expected 'x' before the number of nodes"), std::string::npos);
  EXPECT_NE(refusal("2(x3", false).find("expected ')' after the number of nodes"), std::string::npos);
  EXPECT_NE(refusal("2(x0)", false).find("0 is out of range, expected 1 to 65536"), std::string::npos);
  EXPECT_NE(refusal("2x3", false).find("expected a comma or the end, at character 2"), std::string::npos);
  EXPECT_NE(refusal("1(x65536),1", false).find("more than 65536 nodes"), std::string::npos);
  EXPECT_NE(refusal("1000001", false).find("1000001 is out of range"), std::string::npos);
}

// Random texts give a list of plain names or a one-line error.
TEST(SlurmHosts, RandomTextsGiveNamesOrAOneLineError) {
  std::mt19937 random(7);
  const std::string alphabet = "a0-19,[],[]-(x)\n";
  int accepted = 0, refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (std::size_t length = random() % 12; text.size() < length;) text += alphabet[random() % alphabet.size()];
    try {
      for (const std::string& name : hosts(text)) {
        ASSERT_FALSE(name.empty()) << text;
        ASSERT_EQ(name.find_first_of(",[]()\n"), std::string::npos) << text;
      }
      ++accepted;
    } catch (const UserError& error) {
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << text;
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace furlong
