// Peers that are processes of their own, and die or stop.
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "kv_connector/pull/pull_fixture.h"

namespace dormouse::pull {
namespace {

// A child that plays one engine. It is forked before this process has threads.
class Child {
 public:
  using Play = std::function<void(Child&)>;
  explicit Child(const Play& play) {
    EXPECT_EQ(::pipe(to_child_), 0);
    EXPECT_EQ(::pipe(to_parent_), 0);
    pid_ = ::fork();
    if (pid_ != 0)
      return;
    std::swap(to_child_, to_parent_);
    play(*this);
    for (;;)
      ::pause();
  }
  ~Child() {
    kill();
    for (const int fd : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]})
      ::close(fd);
  }

  void kill() {
    if (std::exchange(alive_, false)) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  // Nobody waits for it: its number stays its own.
  void die() {
    ::kill(pid_, SIGKILL);
    siginfo_t ended{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT), 0);
  }
  // Returns once every thread of it stands.
  void stop() {
    ::kill(pid_, SIGSTOP);
    EXPECT_EQ(::waitpid(pid_, nullptr, WUNTRACED), pid_);
  }
  void go_on() { ::kill(pid_, SIGCONT); }
  pid_t pid() const { return pid_; }

  // Lines to the other side, and from it.
  void say(std::string line) {
    line += '\n';
    EXPECT_EQ(::write(to_child_[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  std::string hear() {
    std::string line;
    for (char c = 0; ::read(to_parent_[0], &c, 1) == 1 && c != '\n';)
      line += c;
    return line;
  }

 private:
  int to_child_[2];
  int to_parent_[2];
  pid_t pid_ = 0;
  bool alive_ = true;
};

class PullProcessTest : public ::testing::Test {
 protected:
  EngineOptions producing() { return {.folder = folder.path, .name = "producer", .port = 1}; }
  EngineOptions consuming() {
    return {.folder = folder.path, .name = "consumer", .port = 2, .peers = R"(["127.0.0.1:1"])"};
  }
  // Loads one block for each line it hears, and says how it went.
  Child::Play consumer() {
    return [this](Child& child) {
      Engine engine(consuming());
      for (RequestId id = 1;; ++id)
        child.say("failure: " + engine.load(id, child.hear(), {4}, 4).output.failure);
    };
  }
  // Offers a block for each line it hears.
  Child::Play producer() {
    return [this](Child& child) {
      Engine engine(producing());
      for (RequestId id = 1;; ++id) {
        child.hear();
        child.say(engine.prefill(id, {3}, 4, 50));
      }
    };
  }

  Folder folder;
};

TEST_F(PullProcessTest, PagesOfAProducerThatDiesAreDroppedAtOnceAndLoadsFail) {
  Child child(producer());
  child.say("prefill");
  const std::string first = child.hear();
  Engine consumer(consuming());
  EXPECT_EQ(consumer.load(1, first, {4}, 4).output.failure, "");
  EXPECT_TRUE(consumer.holds(4, 50));
  EXPECT_EQ(consumer.stat("kv_pins"), 1);
  child.say("prefill");
  const std::string second = child.hear();
  child.kill();
  EXPECT_TRUE(eventually([&] { return consumer.stat("kv_pins") == 0; }, std::chrono::seconds(1)));
  const Time began = Clock::now();
  EXPECT_NE(consumer.load(2, second, {4}, 4).output.failure, "");
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(1));
}

TEST_F(PullProcessTest, ReadFromAProducerThatDiesMeanwhileIsWorthless) {
  Child child(producer());
  child.say("prefill");
  const std::string params = child.hear();
  Engine consumer(consuming());
  consumer.hooks.before_read = [&] { child.kill(); };
  const auto loaded = consumer.load(1, params, {4}, 4);
  EXPECT_NE(loaded.output.failure, "");
  EXPECT_EQ(loaded.output.invalid_block_ids, std::vector<BlockId>{4});
  EXPECT_TRUE(eventually([&] { return consumer.stat("kv_pins") == 0; }, std::chrono::seconds(1)));
}

TEST_F(PullProcessTest, StoppedProducerCostsNoMoreThanTheDeadlineOfTheLoad) {
  Child child(producer());
  child.say("prefill");
  const std::string params = child.hear();
  EngineOptions options = consuming();
  options.extra = R"(, "pull_timeout": 0.2)";
  Engine consumer(options);
  child.stop();
  const Time began = Clock::now();
  EXPECT_NE(consumer.load(1, params, {4}, 4).output.failure, "");
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(2));
}

TEST_F(PullProcessTest, ConsumerSleepsInTimeWhileItsProducerIsStopped) {
  Child child(producer());
  child.say("prefill");
  const std::string params = child.hear();
  Engine consumer(consuming());
  child.stop();
  consumer.start(1, params, {4}, 4);
  consumer.step();
  EXPECT_TRUE(consumer.sleep(std::chrono::seconds(3)));
}

TEST_F(PullProcessTest, StoppedImporterFailsTheSleepUntilItRunsAgain) {
  Child child(consumer());
  Engine producer(producing());
  child.say(producer.prefill(7, {3}, 4, 50));
  EXPECT_EQ(child.hear(), "failure: ");
  child.stop();
  const auto slept = producer.sleep(milliseconds(100));
  ASSERT_FALSE(slept);
  EXPECT_NE(slept.error().message.find(fmt::format("importer consumer (pid {})", child.pid())),
            std::string::npos)
      << slept.error().message;
  EXPECT_TRUE(producer.allocator.is_mapped(kKvCacheTag));
  EXPECT_EQ(producer.stat("kv_importers"), 1);
  child.go_on();
  EXPECT_TRUE(eventually([&] { return producer.stat("kv_importers") == 0; }));
  child.say(producer.prefill(8, {3}, 4, 50));
  EXPECT_EQ(child.hear(), "failure: ");
  EXPECT_TRUE(producer.sleep());
}

TEST_F(PullProcessTest, ForcedSleepGoesOnWithoutAStoppedImporter) {
  Child child(consumer());
  Engine producer(producing());
  child.say(producer.prefill(7, {3}, 4, 50));
  EXPECT_EQ(child.hear(), "failure: ");
  const KvCaches caches = producer.caches();
  child.stop();
  Unmapping unmapping{.deadline = Clock::now() + milliseconds(50), .force = true};
  ASSERT_TRUE(producer.worker->release_kv_caches(unmapping));
  ASSERT_EQ(unmapping.kept.size(), 1U);
  EXPECT_EQ(unmapping.kept[0].what, fmt::format("importer consumer (pid {})", child.pid()));
  EXPECT_GT(unmapping.kept[0].bytes, 0U);
  EXPECT_EQ(producer.stat("kv_pinned_bytes"), unmapping.kept[0].bytes);
  ASSERT_TRUE(producer.worker->restore_kv_caches(producer.caches()));
  Unmapping later{.deadline = Clock::now() + milliseconds(500)};
  ASSERT_TRUE(producer.worker->release_kv_caches(later));
  ASSERT_EQ(later.kept.size(), 1U) << "it is still held";
  EXPECT_EQ(later.kept[0].bytes, unmapping.kept[0].bytes);
  child.go_on();
  EXPECT_TRUE(eventually([&] { return producer.stat("kv_pinned_bytes") == 0; }));
  EXPECT_TRUE(eventually(
      [&] { return *(*make_ipc_agent(producer.driver, 1)->holding(caches))(child.pid()) == 0; }));
}

TEST_F(PullProcessTest, DeathOfAnImporterEndsTheWaitForIt) {
  Child child(consumer());
  Engine producer(producing());
  child.say(producer.prefill(7, {3}, 4, 50));
  EXPECT_EQ(child.hear(), "failure: ");
  child.stop();
  std::thread killer([&] {
    EXPECT_TRUE(eventually([&] { return producer.stat("kv_revocations_total") == 1; }));
    child.kill();
  });
  const Time began = Clock::now();
  EXPECT_TRUE(producer.sleep(std::chrono::seconds(20)));
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(5));
  killer.join();
}

TEST_F(PullProcessTest, ImporterThatDiedHoldsNothingAlsoWhereTheSystemCannotTellWhoHoldsWhat) {
  Child child(consumer());
  Engine producer(producing());
  producer.hooks.sees_holders = false;
  child.say(producer.prefill(7, {3}, 4, 50));
  EXPECT_EQ(child.hear(), "failure: ");
  child.die();
  ASSERT_TRUE(eventually([&] { return producer.stat("kv_importers") == 0; }));
  const auto slept = producer.sleep(milliseconds(200));
  EXPECT_TRUE(slept) << slept.error().message;
}

TEST_F(PullProcessTest, PinOfAnImporterEndsWithIt) {
  Child child(consumer());
  Engine producer(producing());
  producer.hooks.sees_holders = false;
  child.say(producer.prefill(7, {3}, 4, 50));
  EXPECT_EQ(child.hear(), "failure: ");
  child.stop();
  ASSERT_TRUE(producer.sleep(milliseconds(50), true));
  EXPECT_GT(producer.stat("kv_pinned_bytes"), 0);
  child.die();
  EXPECT_TRUE(eventually([&] { return producer.stat("kv_pinned_bytes") == 0; }));
}

TEST_F(PullProcessTest, DeathOfAReaderEndsItsGrantAndNotTheLease) {
  Child dying([this](Child& child) {
    Engine engine(consuming());
    engine.hooks.before_read = [&] {
      child.say("reading");
      ::pause();
    };
    engine.load(1, child.hear(), {4}, 4);
  });
  Engine producer(producing());
  const std::string params = producer.prefill(7, {3}, 4, 50);
  dying.say(params);
  EXPECT_EQ(dying.hear(), "reading");
  dying.kill();
  EXPECT_TRUE(eventually([&] { return producer.stat("kv_importers") == 0; }));
  EXPECT_EQ(producer.stat("kv_leases_active"), 1);
  EXPECT_TRUE(producer.sleep(std::chrono::seconds(5)));
}

}  // namespace
}  // namespace dormouse::pull
