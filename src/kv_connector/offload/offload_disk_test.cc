// The OffloadingConnector with its disk tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_connector/block_key.h"
#include "kv_connector/offload/disk_block.h"
#include "kv_connector/offload/offload_fixture.h"
#include "testing/corrupt.h"

namespace dormouse {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OffloadDiskTest : public ::testing::Test {
 protected:
  KvConnectorContext context(std::size_t slots = 8) const {
    return context_of(R"({"cpu_bytes_to_use":)" +
                      std::to_string(slots * small_shape().block_bytes()) + R"(,"disk_path":")" +
                      folder_.path() + R"(","transfer_timeout":)" + std::to_string(timeout_) + "}");
  }
  // Three blocks, until their files are there.
  void store(OffloadEngine& engine) {
    TestRequest request = request_of(1, 12);
    for (BlockId id : {1U, 2U, 3U})
      engine.fill(id, static_cast<int>(id));
    ASSERT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
    while (files().size() < 3) {
      engine.step();
      std::this_thread::yield();
    }
    engine.settle();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder_.path(), error))
      if (each.path().extension() == ".kv")
        found.push_back(each.path().string());
    return found;
  }
  // Of the given block of the request.
  std::string file(const KvConnectorContext& of, std::size_t block) const {
    const TestRequest request = request_of(1, 12);
    std::string key = root_key(of.shape, 1, of.model_hash, "");
    for (std::size_t i = 0; i <= block; ++i)
      key = child_key(key, std::span(request.tokens).subspan(4 * i, 4));
    return DiskTier::file_of(folder_.path(), key, 0);
  }

  ScratchFolder folder_;
  double timeout_ = 10;
};

TEST_F(OffloadDiskTest, ANewEngineFindsWhatAnotherWrote) {
  OffloadEngine writer(context());
  store(writer);
  OffloadEngine reader(context());
  EXPECT_EQ(reader.load(request_of(1, 13), {7, 8, 9, 10}), 12U);
  const KvConnectorOutput output = reader.poll();
  EXPECT_THAT(output.finished_recving, ElementsAre(1));
  EXPECT_THAT(output.invalid_block_ids, IsEmpty());
  EXPECT_TRUE(reader.holds(7, 1) && reader.holds(8, 2) && reader.holds(9, 3));
  KvConnectorContext other = context();
  other.model_hash = "other weights";
  EXPECT_EQ(OffloadEngine(other).matched(request_of(1, 13)), 0U);
}

TEST_F(OffloadDiskTest, AFileThatVanishesBetweenLookupAndLoadIsAFailedLoad) {
  OffloadEngine writer(context());
  store(writer);
  OffloadEngine reader(context());
  EXPECT_EQ(reader.load(request_of(1, 13), {7, 8, 9, 10}), 12U);
  std::filesystem::remove(file(context(), 1));
  const KvConnectorOutput output = reader.poll();
  EXPECT_THAT(output.finished_recving, ElementsAre(1));
  EXPECT_THAT(output.invalid_block_ids, ElementsAre(8, 9)) << "from the failed one on";
  EXPECT_THAT(output.failure, HasSubstr("OffloadingConnector: KV block"));
  EXPECT_TRUE(reader.holds(7, 1));
  EXPECT_EQ(reader.stat("kv_offload_disk_errors_vanished_total"), 1);
  reader.settle();
  EXPECT_EQ(reader.matched(request_of(2, 13)), 4U);
}

TEST_F(OffloadDiskTest, ADamagedFileIsNeverServed) {
  OffloadEngine writer(context());
  store(writer);
  testing::flip_bit(file(context(), 0), kBlockHeaderBytes + 9);
  OffloadEngine reader(context());
  const std::vector<std::byte> before = reader.cache;
  EXPECT_EQ(reader.load(request_of(1, 13), {7, 8, 9, 10}), 12U);
  EXPECT_THAT(reader.poll().invalid_block_ids, ElementsAre(7, 8, 9));
  EXPECT_EQ(reader.cache, before);
  EXPECT_EQ(reader.stat("kv_offload_disk_errors_checksum_total"), 1);
  reader.settle();
  EXPECT_EQ(reader.matched(request_of(2, 13)), 0U);
  // What was computed instead is stored again.
  store(reader);
  EXPECT_EQ(OffloadEngine(context()).matched(request_of(3, 13)), 12U);
}

TEST_F(OffloadDiskTest, AFileThatCannotBeDeletedIsAskedForOnce) {
  OffloadEngine writer(context());
  store(writer);
  // A folder in its place: neither to be read nor to be unlinked.
  std::filesystem::remove(file(context(), 1));
  std::filesystem::create_directory(file(context(), 1));
  OffloadEngine reader(context());
  EXPECT_EQ(reader.load(request_of(1, 13), {7, 8, 9, 10}), 12U);
  EXPECT_THAT(reader.poll().invalid_block_ids, ElementsAre(8, 9));
  reader.settle();
  EXPECT_EQ(reader.matched(request_of(2, 13)), 4U);
}

TEST_F(OffloadDiskTest, ASlotIsKeptUntilItsFileIsWritten) {
  OffloadEngine engine(context(3));
  store(engine);
  // Every slot was used by a write; were one never given back, nothing could follow.
  RequestId id = 2;
  for (TokenId first = 1000; first < 5000; first += 1000) {
    TestRequest other = request_of(id, 12, first);
    while (engine.matched(other) < 12) {
      other.id = id++;
      engine.finish(other, {4, 5, 6});
      engine.step();
      engine.settle();
    }
  }
  EXPECT_GE(engine.stat("kv_offload_evictions_total"), 9);
  EXPECT_EQ(engine.load(request_of(id, 13), {7, 8, 9, 10}), 12U) << "from disk";
  EXPECT_THAT(engine.poll().invalid_block_ids, IsEmpty());
  EXPECT_TRUE(engine.holds(7, 1) && engine.holds(9, 3));
}

TEST_F(OffloadDiskTest, ALoadEndsInTimeThoughTheFileSystemNeverAnswers) {
  OffloadEngine writer(context());
  store(writer);
  timeout_ = 0.2;
  OffloadEngine reader(context());
  reader.files.close();
  EXPECT_EQ(reader.load(request_of(1, 13), {7, 8, 9, 10}), 12U);
  reader.step();
  EXPECT_EQ(reader.load(request_of(2, 13), {11, 12, 13, 14}), 12U);
  RequestIds ended;
  std::vector<BlockId> invalid;
  while (ended.size() < 2) {
    const KvConnectorOutput output = reader.poll();
    ended.insert(ended.end(), output.finished_recving.begin(), output.finished_recving.end());
    invalid.insert(invalid.end(), output.invalid_block_ids.begin(), output.invalid_block_ids.end());
    EXPECT_THAT(output.failure, HasSubstr("within 0.2 s (transfer_timeout)"));
  }
  EXPECT_THAT(ended, ElementsAre(1, 2));
  EXPECT_THAT(invalid, ElementsAre(7, 8, 9, 11, 12, 13));

  // Whose threads all hang is not asked again.
  EXPECT_EQ(reader.load(request_of(5, 13), {7, 8, 9, 10}), 12U);
  const KvConnectorOutput refused = reader.step();
  EXPECT_THAT(refused.finished_recving, ElementsAre(5));
  EXPECT_THAT(refused.failure, HasSubstr("does not answer"));

  // The host tier works on, and a late answer touches nothing.
  TestRequest other = request_of(3, 9, 500);
  reader.fill(1, 21);
  reader.fill(2, 22);
  ASSERT_TRUE(reader.finish(other, {1, 2, 3}).delay_free);
  EXPECT_THAT(reader.poll().finished_sending, ElementsAre(3));
  EXPECT_EQ(reader.load(request_of(4, 9, 500), {7, 8, 9}), 8U);
  EXPECT_THAT(reader.poll().invalid_block_ids, IsEmpty());
  EXPECT_EQ(reader.stat("kv_offload_loaded_blocks_total"), 2);
  reader.files.open();
  RequestId id = 6;
  do
    EXPECT_EQ(reader.load(request_of(id++, 13), {11, 12, 13, 14}), 12U);
  while (!reader.poll().invalid_block_ids.empty());
  EXPECT_TRUE(reader.holds(7, 21) && reader.holds(8, 22));
}

TEST_F(OffloadDiskTest, ASlotIsFreeThoughItsFileIsNeverWritten) {
  timeout_ = 0.2;
  OffloadEngine engine(context(3));
  engine.files.close();
  TestRequest request = request_of(1, 12);
  ASSERT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(1));
  RequestId id = 2;
  while (engine.stat("kv_offload_stored_blocks_total") < 5) {
    TestRequest other = request_of(id++, 8, 1000);
    engine.finish(other, {4, 5});
    engine.step();
    engine.settle();
  }
  EXPECT_GE(engine.stat("kv_offload_unwritten_blocks_total"), 2);
}

TEST_F(OffloadDiskTest, EndsThoughTheFileSystemNeverAnswers) {
  OffloadEngine writer(context());
  store(writer);
  auto gate = std::make_shared<CopyGate>();
  gate->close();
  {
    auto scheduler = *OffloadScheduler::create(context());
    auto worker = *OffloadWorker::create(
        context(), {.copy = [](auto, auto) { ADD_FAILURE() << "after the end"; },
                    .before_file = [gate] { gate->pass(); }});
    OneRankEngine reader(context(), std::move(scheduler), std::move(worker));
    EXPECT_EQ(reader.load(request_of(1, 13), {7, 8, 9, 10}), 12U);
    reader.step();
    gate->wait_for(1);
  }
  gate->open();
  while (gate.use_count() > 1)
    std::this_thread::yield();
}

TEST_F(OffloadDiskTest, SurvivesASleepBetweenCopyAndFile) {
  OffloadEngine engine(context());
  TestRequest request = request_of(1, 12);
  for (BlockId id : {1U, 2U, 3U})
    engine.fill(id, static_cast<int>(id));
  ASSERT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(1));
  engine.sleep_and_wake();
  while (files().size() < 3)
    std::this_thread::yield();
  OffloadEngine reader(context());
  EXPECT_EQ(reader.load(request_of(2, 13), {7, 8, 9, 10}), 12U);
  EXPECT_THAT(reader.poll().invalid_block_ids, IsEmpty());
  EXPECT_TRUE(reader.holds(7, 1) && reader.holds(8, 2) && reader.holds(9, 3));
}

}  // namespace
}  // namespace dormouse
