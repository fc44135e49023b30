#include "kv_connector/pull/pull_from.h"

#include <fmt/core.h>

#include <set>

#include "base/check.h"
#include "kv_connector/pull/read_plan.h"

namespace dormouse::pull {
namespace {

using Grant = AnyMessage<Granted, Refused>;

PullAttempt failed(const Error& error) {
  return {tl::unexpected(error), error.code == ErrorCode::kUnavailable};
}

Result<Grant> ask_grant(const PullOrder& order, const PullTarget& target, Connection& connection,
                        Connection::Wait wait) {
  const RemoteReference& from = order.from;
  DM_TRY_ASSIGN(const Connection::Answer answer,
                connection.call(Pull{.name = from.name,
                                     .incarnation = from.incarnation,
                                     .generation = from.generation,
                                     .model_hash = order.model_hash,
                                     .blocks = from.blocks,
                                     .first_block = order.first_block,
                                     .heads = heads_of(target.shape),
                                     .verify = target.verify,
                                     .prompt_hash = order.prompt_hash},
                                wait));
  return Grant::read(answer.message);
}

// A reference that is stale stays so; but if it was our picture of the peer, a handshake helps.
PullAttempt refused(const Refused& refusal, const Meta& meta, const RemoteReference& from) {
  const bool moved =
      refusal.incarnation != meta.incarnation || refusal.generation != meta.generation;
  std::string text = fmt::format("engine {} refused the pull: {}", meta.engine_id, refusal.kind);
  if (refusal.incarnation != from.incarnation || refusal.generation != from.generation)
    text += fmt::format(
        "; the blocks are of generation {} of incarnation {}, the engine is at "
        "generation {} of {}",
        from.generation, from.incarnation, refusal.generation, refusal.incarnation);
  return {fail(ErrorCode::kTransferFailed, std::move(text)), moved};
}

PullAttempt compare(const PullOrder& order, const PullTarget& target, HeadRange heads,
                    const Granted& granted) {
  const auto& blocks = order.local_blocks;
  if (granted.hashes.size() != blocks.size())
    return {fail(ErrorCode::kDataLoss, "the peer sent no checksum for each block")};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::byte* block = target.cache.data() + blocks[i] * target.shape.block_bytes();
    if (hash_heads(target.shape, block, heads) != granted.hashes[i])
      return {.status = fail(ErrorCode::kDataLoss,
                             fmt::format("the checksum of block {} differs from that of the "
                                         "peer's block {}",
                                         blocks[i], order.from.blocks[i])),
              .mismatch = true};
  }
  return {};
}

Status confirm(const LeaseName& name, const Granted& granted, Connection& connection,
               Connection::Wait wait) {
  DM_TRY_ASSIGN(const Connection::Answer answer,
                connection.call(Pulled{name, granted.grant}, wait));
  DM_TRY_ASSIGN(const auto confirmed, AnyMessage<Confirmed>::read(answer.message));
  if (!std::get<Confirmed>(confirmed.body).alive)
    return fail(ErrorCode::kTransferFailed, "the lease ended while its blocks were read");
  return {};
}

Status check_covered(HeadRange wanted, const std::vector<RankMetadata>& owners) {
  std::string held;
  std::set<std::uint32_t> missing;
  for (std::uint32_t head = wanted.first; head < wanted.last; ++head)
    missing.insert(head);
  for (const RankMetadata& owner : owners) {
    const HeadRange heads = heads_of(owner.shape);
    held += (held.empty() ? "" : ", ") + to_string(heads);
    std::erase_if(missing, [&](auto head) { return head >= heads.first && head < heads.last; });
  }
  if (missing.empty())
    return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("this rank has the KV heads {}; the peer's ranks "
                          "have {}",
                          to_string(wanted), held));
}

}  // namespace

Status check_peer(const Peer& peer, const PullOrder& order, const KvShape& shape) {
  const Meta& meta = peer.meta();
  const RemoteReference& from = order.from;
  if (meta.engine_id != from.engine_id)
    return fail(ErrorCode::kTransferFailed,
                fmt::format("at port {} is engine {}; the blocks are of engine {}", from.port,
                            meta.engine_id, from.engine_id));
  if (meta.model_hash != order.model_hash)
    return fail(ErrorCode::kUnsupported, fmt::format("model_hash differs: {} here, {} at the peer",
                                                     order.model_hash, meta.model_hash));
  for (const RankMetadata& owner : peer.ranks())
    DM_TRY(check_compatible(shape, owner.shape));
  DM_TRY(check_covered(heads_of(shape), peer.ranks()));
  if (from.blocks.size() != order.local_blocks.size())
    return fail(ErrorCode::kTransferFailed,
                fmt::format("the reference has {} blocks of the {} that its tokens need",
                            from.blocks.size(), order.local_blocks.size()));
  return {};
}

PullAttempt pull_from(const Peer& peer, const RankMetadata& owner, const PullOrder& order,
                      const PullTarget& target, Connection& connection, TransferAgent& agent,
                      Connection::Wait wait) {
  const Time began = Clock::now();
  const auto use = connection.use(wait);
  if (!use)
    return failed(use.error());
  const Meta& meta = peer.meta();
  if (use->generation() != meta.generation || use->incarnation() != meta.incarnation)
    return {fail(ErrorCode::kUnavailable, "the peer has another generation by now"), true};
  const auto answer = ask_grant(order, target, connection, wait);
  if (!answer)
    return failed(answer.error());
  if (const auto* refusal = std::get_if<Refused>(&answer->body))
    return refused(*refusal, meta, order.from);
  const Granted& granted = std::get<Granted>(answer->body);
  const Time posted = Clock::now();
  const auto spans =
      plan_reads({target.shape, target.num_blocks}, target.cache.data(),
                 {owner.shape, owner.num_blocks}, order.local_blocks, order.from.blocks);
  if (!spans)
    return {tl::unexpected(spans.error())};
  if (const Status read = agent.read(use->memory(), *spans, {wait.deadline, wait.cancelled}); !read)
    return {read};
  if (target.verify) {
    const HeadRange heads = common_heads(heads_of(target.shape), heads_of(owner.shape));
    if (PullAttempt compared = compare(order, target, heads, granted); !compared.status)
      return compared;
  }
  if (const Status confirmed = confirm(order.from.name, granted, connection, wait); !confirmed)
    return failed(confirmed.error());
  TransferSample took{
      .post = posted - began, .transfer = Clock::now() - posted, .descriptors = spans->size()};
  for (const ReadSpan& span : *spans)
    took.bytes += span.bytes;
  return {.took = took};
}

}  // namespace dormouse::pull
