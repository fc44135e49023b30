#include "kv_connector/pull/pull_scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/sha256.h"

namespace dormouse::pull {
namespace {

constexpr std::string_view kFolder = "kv_connector";
constexpr std::size_t kTokenBytes = 16;

double unix_time_after(Clock::duration time) {
  const auto at = std::chrono::system_clock::now().time_since_epoch() + time;
  return std::chrono::duration<double>(at).count();
}

// Of the first tokens, of how many there are said to be, and of the salt that keeps users apart.
std::string prompt_hash(const KvRequest& request, std::uint32_t num_tokens) {
  const auto tokens = request.tokens.first(
      std::min<std::size_t>({num_tokens, request.prompt_length, request.tokens.size()}));
  const auto hashed = [](auto values) { return sha256_hex(std::as_bytes(std::span(values))); };
  return hashed(std::string_view(fmt::format("{}{}{}", hashed(std::string_view(request.cache_salt)),
                                             num_tokens, hashed(tokens))));
}

RemoteReference without_blocks(RemoteReference reference) {
  reference.blocks.clear();
  return reference;
}

}  // namespace

Result<std::unique_ptr<PullScheduler>> PullScheduler::create(const KvConnectorContext& context) {
  DM_TRY_ASSIGN(PullConfig config, read_pull_config(context.config));
  DM_TRY_ASSIGN(const net::MeetingPlace place, meeting_place(config));
  if (context.config.kv_role == KvRole::kConsumer && config.peers.empty())
    log(LogLevel::kWarning, kFolder,
        "kv_role is kv_consumer and kv_connector_extra_config.peers is empty: this engine can pull "
        "from nobody");
  std::unique_ptr<PullScheduler> scheduler(new PullScheduler(context, std::move(config)));
  if (context.config.kv_role != KvRole::kConsumer) {
    const std::string path = scheduler_socket(place.directory, context.config.kv_port);
    DM_TRY_ASSIGN(scheduler->service_, MetaService::start(path, place.token));
  }
  return scheduler;
}

PullScheduler::PullScheduler(const KvConnectorContext& context, PullConfig config)
    : context_(context), config_(std::move(config)) {}

Status PullScheduler::check_request(const Request& request) const {
  DM_TRY_ASSIGN(const TransferParams params,
                parse_transfer_params(request.kv_transfer_params, bounds()));
  const KvRole role = context_.config.kv_role;
  if (params.do_remote_prefill && role == KvRole::kProducer)
    return fail(ErrorCode::kInvalidArgument,
                "kv_transfer_params.do_remote_prefill: this engine's kv_role is kv_producer",
                "kv_transfer_params.do_remote_prefill");
  if (params.do_remote_decode && role == KvRole::kConsumer)
    return fail(ErrorCode::kInvalidArgument,
                "kv_transfer_params.do_remote_decode: this engine's kv_role is kv_consumer",
                "kv_transfer_params.do_remote_decode");
  const std::string peer = fmt::format("{}:{}", params.remote.host, params.remote.port);
  if (params.do_remote_prefill && !config_.peers.contains(peer))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is not a configured peer; kv_connector_extra_config.peers lists "
                            "those that may be dialled",
                            peer),
                "kv_transfer_params.remote_host");
  return {};
}

void PullScheduler::on_new_request(const KvRequest& request) {
  auto params = parse_transfer_params(request.kv_transfer_params, bounds());
  if (!params || !params->do_remote_prefill)
    return;
  orders_.heartbeats.push_back({request.id, without_blocks(params->remote)});
  loads_[request.id] = {std::move(params->remote)};
}

std::optional<KvMatch> PullScheduler::get_num_new_matched_tokens(const KvRequest& request,
                                                                 std::uint32_t num_computed) {
  const auto load = loads_.find(request.id);
  if (load == loads_.end() || load->second.started)
    return KvMatch{};
  const std::uint32_t end = std::min(request.prompt_length, load->second.from.num_tokens);
  if (end <= num_computed)
    return KvMatch{};
  return KvMatch{.tokens = end - num_computed, .load_is_async = true};
}

void PullScheduler::update_state_after_alloc(const KvRequest& request,
                                             std::span<const BlockId> blocks,
                                             std::uint32_t num_external) {
  const auto load = loads_.find(request.id);
  if (load == loads_.end() || load->second.started)
    return;
  RemoteReference& from = load->second.from;
  if (num_external == 0) {
    orders_.releases.push_back({request.id, without_blocks(std::move(from))});
    loads_.erase(load);
    return;
  }
  const std::uint32_t block_size = context_.shape.block_size;
  const std::size_t first = request.num_computed / block_size;
  const std::size_t last = (request.num_computed + num_external + block_size - 1) / block_size;
  DM_CHECK(request.num_computed % block_size == 0, "what is computed here ends with a block");
  DM_CHECK(last <= blocks.size(), "each token has its block");
  PullOrder order{.request = request.id,
                  .from = without_blocks(from),
                  .local_blocks = {blocks.begin() + first, blocks.begin() + last},
                  .first_block = static_cast<std::uint32_t>(first),
                  .num_tokens = num_external,
                  .model_hash = context_.model_hash,
                  .prompt_hash = prompt_hash(request, from.num_tokens)};
  // Too few if the peer's blocks are of another size: then the load fails and says so.
  for (std::size_t i = first; i < std::min(last, from.blocks.size()); ++i)
    order.from.blocks.push_back(from.blocks[i]);
  orders_.pulls.push_back(std::move(order));
  load->second.started = true;
}

std::string PullScheduler::build_connector_meta() {
  return encode_orders(std::exchange(orders_, {}));
}

bool PullScheduler::has_pending_work() const {
  return !orders_.empty();
}

void PullScheduler::update_connector_output(const KvConnectorOutput& output) {
  for (const RequestId request : output.finished_sending)
    left_.erase(request);
  if (context_.world_size > 1)
    return;  // other ranks may be loading still; request_finished forgets it
  for (const RequestId request : output.finished_recving)
    loads_.erase(request);
}

KvRequestFinished PullScheduler::request_finished(const KvRequest& request,
                                                  std::span<const BlockId> blocks) {
  if (const auto load = loads_.extract(request.id)) {
    if (load.mapped().started)
      orders_.cancels.push_back(request.id);
    else
      orders_.releases.push_back({request.id, without_blocks(load.mapped().from)});
  }
  const bool complete =
      request.finished == FinishReason::kLength || request.finished == FinishReason::kStop;
  const bool offers = complete && !blocks.empty() && service_ != nullptr && !ranks_.empty();
  const auto params = parse_transfer_params(request.kv_transfer_params, bounds());
  if (!offers || !params || !params->do_remote_decode)
    return {};
  return leave_blocks(request, blocks);
}

// Two engines that read each other's blocks would wait for each other if leases could take all of
// them: what is left for requests here frees what those at the peer wait for.
bool PullScheduler::may_leave(std::size_t blocks) const {
  if (context_.config.kv_role != KvRole::kBoth || config_.peers.empty())
    return true;
  for (const auto& [request, count] : left_)
    blocks += count;
  return blocks <= context_.num_blocks / 2;
}

KvConnectorStats PullScheduler::get_kv_connector_stats() const {
  return {{"kv_leases_declined_total", static_cast<double>(declined_)}};
}

KvRequestFinished PullScheduler::leave_blocks(const KvRequest& request,
                                              std::span<const BlockId> blocks) {
  const std::uint32_t block_size = context_.shape.block_size;
  const std::uint32_t tokens = std::min(request.prompt_length, request.num_computed);
  const std::size_t count = (tokens + block_size - 1) / block_size;
  if (count == 0 || count > blocks.size())
    return {};
  if (!may_leave(count)) {
    ++declined_;
    return {};
  }
  left_[request.id] = count;
  RemoteReference left{
      .engine_id = context_.config.engine_id,
      .incarnation = context_.incarnation,
      .generation = generation_,
      .name = {std::to_string(request.id), random_hex(kTokenBytes)},
      .host = context_.config.kv_ip,
      .port = context_.config.kv_port,
      .blocks = {blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(count)},
      .num_tokens = tokens};
  orders_.leases.push_back({request.id, left.name.token, context_.model_hash, left.blocks,
                            prompt_hash(request, tokens)});
  return {.delay_free = true,
          .kv_transfer_params =
              reply_params(left, context_.world_size, unix_time_after(config_.lease_duration))};
}

void PullScheduler::set_xfer_handshake_metadata(const std::vector<std::string>& by_rank) {
  ranks_.clear();
  std::optional<std::uint64_t> generation;
  for (const std::string& bytes : by_rank) {
    const auto rank = decode_rank_metadata(bytes);
    if (!rank || generation.value_or(rank->generation) != rank->generation) {
      log(LogLevel::kWarning, kFolder, "not published: {}",
          rank ? "the ranks are of different generations" : rank.error().message);
      return publish();
    }
    generation = rank->generation;
  }
  ranks_ = by_rank;
  if (std::exchange(generation_, generation.value_or(0)) != generation_)
    left_.clear();  // with the mapping
  publish();
}

void PullScheduler::set_model_hash(const std::string& model_hash) {
  context_.model_hash = model_hash;
  publish();
}

void PullScheduler::publish() {
  if (service_ == nullptr)
    return;
  if (ranks_.empty())
    return service_->publish(std::nullopt);
  service_->publish(Meta{.version = kProtocolVersion,
                         .engine_id = context_.config.engine_id,
                         .incarnation = context_.incarnation,
                         .generation = generation_,
                         .model_hash = context_.model_hash,
                         .world_size = static_cast<std::uint32_t>(ranks_.size()),
                         .ranks = ranks_});
}

void PullScheduler::shutdown() {
  service_.reset();
}

}  // namespace dormouse::pull
