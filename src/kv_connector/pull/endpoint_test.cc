#include "kv_connector/pull/endpoint.h"

#include "kv_connector/pull/pull_fixture.h"

namespace dormouse::pull {
namespace {

struct NoMemory final : MemoryRegistration {
  Result<ExportedMemory> export_memory() override { return ExportedMemory{"nothing"}; }
};

// Of memory that nobody maps.
struct IdleAgent final : TransferAgent {
  Result<std::unique_ptr<MemoryRegistration>> register_memory(const KvCaches&) override {
    return std::make_unique<NoMemory>();
  }
  Result<std::unique_ptr<RemoteMemory>> import_memory(ExportedMemory) override {
    return fail(ErrorCode::kUnavailable, "nobody maps this");
  }
  Status read(const RemoteMemory&, std::span<const ReadSpan>, const ReadControl&) override {
    return fail(ErrorCode::kUnavailable, "nobody reads this");
  }
  Result<BytesHeldBy> holding(const KvCaches&) const override {
    return [](pid_t) { return 0; };
  }
};

TEST(Endpoint, ChecksumsBlockNobodyElse) {
  const Folder folder;
  KvShape shape = test_shape();
  shape.head_dim = 1024;
  std::vector<std::byte> cache(shape.block_bytes());
  const std::vector<BlockId> blocks(1 << 15);  // the same one, again and again: it takes a while
  IdleAgent agent;
  const auto endpoint = *Endpoint::start({.connector = "c",
                                          .path = folder.path + "/rank",
                                          .token = "token",
                                          .incarnation = "first",
                                          .shape = shape,
                                          .times = {std::chrono::seconds(60)}},
                                         agent);
  ASSERT_TRUE(endpoint->open({.bytes = cache, .generation = 1}));
  endpoint->add_lease({7, "secret", "weights", blocks, ""});
  const Time deadline = Clock::now() + std::chrono::seconds(60);
  auto channel = *net::connect_with_token(folder.path + "/rank", "token", deadline);
  const auto ask = [&](std::string bytes) {
    EXPECT_TRUE(channel.send({.bytes = std::move(bytes), .descriptors = {}}, deadline));
    return type_of(channel.receive(deadline)->bytes);
  };
  EXPECT_EQ(ask(encode_message(Import{"consumer"}, 1)), "memory");
  std::atomic<bool> answered = false;
  const Time began = Clock::now();
  std::thread asking([&] {
    EXPECT_EQ(ask(encode_message(Pull{.name = {"7", "secret"},
                                      .incarnation = "first",
                                      .generation = 1,
                                      .model_hash = "weights",
                                      .blocks = blocks,
                                      .heads = {0, 2},
                                      .verify = true},
                                 2)),
              "granted");
    answered = true;
  });
  Clock::duration slowest{};
  while (!answered) {
    const Time before = Clock::now();
    endpoint->counters();
    slowest = std::max(slowest, Clock::now() - before);
  }
  asking.join();
  EXPECT_LT(slowest, (Clock::now() - began) / 2);
}

}  // namespace
}  // namespace dormouse::pull
