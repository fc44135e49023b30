#include "router/event_relay.h"

#include <gtest/gtest.h>

namespace dormouse::router {
namespace {

TEST(EventRelay, PassesWholeEventsOnHoweverTheyAreCut) {
  const std::string stream = "data: 1\n\ndata: 2\r\n\r\ndata: 3\n\ndata: [DONE]\n\n";
  for (std::size_t size = 1; size <= stream.size(); ++size) {
    EventRelay relay;
    std::string passed;
    for (std::size_t at = 0; at < stream.size(); at += size) {
      const std::string events = relay.take(stream.substr(at, size));
      EXPECT_TRUE(events.empty() || events.ends_with("\n\n") || events.ends_with("\r\n\r\n"));
      passed += events;
    }
    EXPECT_EQ(passed, stream) << size;
    EXPECT_TRUE(relay.done()) << size;
  }
}

TEST(EventRelay, AnEventIsTooLongOnceItsEndIsNotToBeExpected) {
  EventRelay relay;
  const std::string event(EventRelay::kMaxEventBytes, 'x');
  EXPECT_EQ(relay.take(event), "");
  EXPECT_FALSE(relay.is_too_long());
  EXPECT_EQ(relay.take("\n\ny").size(), event.size() + 2);
  EXPECT_FALSE(relay.is_too_long());
  EXPECT_EQ(relay.take(event), "");
  EXPECT_TRUE(relay.is_too_long());
}

}  // namespace
}  // namespace dormouse::router
