#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace dormouse::text {
namespace {

struct Seen {
  std::string text;
  bool matched = false;
};

Seen feed(StopStrings& stops, const std::vector<std::string>& parts) {
  Seen seen;
  for (const std::string& part : parts) {
    const auto output = stops.push(part);
    seen.text += output.text;
    seen.matched = output.matched;
  }
  seen.text += stops.flush();
  return seen;
}

TEST(StopStrings, HoldsBackWhatCouldBegin) {
  StopStrings stops({"END"}, false);
  EXPECT_EQ(stops.push("abE").text, "ab");
  EXPECT_EQ(stops.push("N").text, "");
  EXPECT_EQ(stops.push("x").text, "ENx");
  EXPECT_EQ(stops.push("EN").text, "");
  const auto end = stops.push("D tail");
  EXPECT_TRUE(end.matched);
  EXPECT_EQ(end.text, "");
  EXPECT_EQ(stops.matched(), "END");
  EXPECT_EQ(stops.push("more").text, "");
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopStrings, EmitsTheStopWhenAsked) {
  StopStrings stops({"\n\n"}, true);
  const Seen seen = feed(stops, {"a\n", "\nb"});
  EXPECT_TRUE(seen.matched);
  EXPECT_EQ(seen.text, "a\n\n");
}

TEST(StopStrings, FlushesWhatNeverBecameAStop) {
  StopStrings stops({"stop"}, false);
  EXPECT_EQ(feed(stops, {"don't st", "o"}).text, "don't sto");
}

TEST(StopStrings, PrefersTheFirstToEndAndThenTheLongest) {
  StopStrings stops({"bc", "abc", "cd"}, false);
  const Seen seen = feed(stops, {"xabcd"});
  EXPECT_EQ(seen.text, "x");
  EXPECT_EQ(stops.matched(), "abc");
}

TEST(StopStrings, IgnoresEmptyStops) {
  StopStrings stops({""}, false);
  const Seen seen = feed(stops, {"abc"});
  EXPECT_EQ(seen.text, "abc");
  EXPECT_FALSE(seen.matched);
}

TEST(StopStrings, AgreesWithASearchOfTheWholeText) {
  std::mt19937 random(5);
  const auto word = [&](std::size_t length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i)
      text.push_back("ab"[random() % 2]);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::string stop = word(1 + random() % 5);
    const std::string text = word(random() % 20);
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < text.size();) {
      parts.push_back(text.substr(at, 1 + random() % 4));
      at += parts.back().size();
    }
    StopStrings stops({stop}, false);
    const Seen seen = feed(stops, parts);
    EXPECT_EQ(seen.text, text.substr(0, text.find(stop))) << stop << " in " << text;
    EXPECT_EQ(stops.matched().has_value(), text.find(stop) != std::string::npos);
  }
}

}  // namespace
}  // namespace dormouse::text
