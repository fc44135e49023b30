#include "net/meeting_place.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <thread>

#include "net/net_fixture.h"

namespace dormouse::net {
namespace {

struct MeetingPlaceTest : ::testing::Test {
  ErrorCode refusal() { return open_meeting_place(path).error().code; }
  static unsigned mode_of(const std::string& name) {
    struct stat found {};
    EXPECT_EQ(::lstat(name.c_str(), &found), 0);
    return found.st_mode & 0777U;
  }

  TemporaryFolder folder;
  std::string path = folder.path + "/place";
};

TEST_F(MeetingPlaceTest, IsMadeOnceForThisUserAlone) {
  const MeetingPlace first = *open_meeting_place(path);
  EXPECT_EQ(first.directory, path);
  EXPECT_EQ(first.token.size(), 64U);
  EXPECT_EQ(first.token.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(open_meeting_place(path)->token, first.token);
  EXPECT_EQ(mode_of(path), 0700U);
  EXPECT_EQ(mode_of(path + "/token"), 0600U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1) << "a draft is left";
}

TEST_F(MeetingPlaceTest, ThoseWhoStartAtOnceAgree) {
  std::vector<std::string> tokens(8);
  {
    std::vector<std::jthread> starters;
    for (std::string& token : tokens)
      starters.emplace_back([&] { token = open_meeting_place(path)->token; });
  }
  EXPECT_EQ(std::set(tokens.begin(), tokens.end()).size(), 1U);
}

TEST_F(MeetingPlaceTest, ADirectoryThatOthersMayEnterIsRefused) {
  ASSERT_TRUE(open_meeting_place(path));
  ASSERT_EQ(::chmod(path.c_str(), 0770), 0);
  EXPECT_EQ(refusal(), ErrorCode::kFailedPrecondition);
}

TEST_F(MeetingPlaceTest, ALinkIsRefused) {
  ASSERT_TRUE(open_meeting_place(folder.path + "/elsewhere"));
  ASSERT_EQ(::symlink((folder.path + "/elsewhere").c_str(), path.c_str()), 0);
  EXPECT_EQ(refusal(), ErrorCode::kFailedPrecondition);
}

TEST_F(MeetingPlaceTest, ATokenThatOthersMayReadIsRefused) {
  ASSERT_TRUE(open_meeting_place(path));
  ASSERT_EQ(::chmod((path + "/token").c_str(), 0640), 0);
  EXPECT_EQ(refusal(), ErrorCode::kFailedPrecondition);
}

TEST_F(MeetingPlaceTest, ATokenOfTheWrongLengthIsRefused) {
  ASSERT_TRUE(open_meeting_place(path));
  std::ofstream(path + "/token", std::ios::trunc) << "short";
  EXPECT_EQ(refusal(), ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace dormouse::net
