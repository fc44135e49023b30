#include "kv_connector/pull/connection.h"

#include <fmt/core.h>

#include "base/check.h"
#include "base/log.h"

namespace dormouse::pull {
namespace {

constexpr std::string_view kFolder = "kv_connector";
constexpr std::chrono::milliseconds kCancelLatency(20);
constexpr std::chrono::seconds kSendTimeout(1);

tl::unexpected<Error> gone() {
  return fail(ErrorCode::kUnavailable, "the peer's connection has ended");
}

}  // namespace

Result<std::shared_ptr<Connection>> Connection::open(Options options, TransferAgent& agent,
                                                     Time deadline) {
  DM_TRY_ASSIGN(net::Channel channel,
                net::connect_with_token(options.path, options.token, deadline));
  return std::shared_ptr<Connection>(new Connection(std::move(options), agent, std::move(channel)));
}

Connection::Connection(Options options, TransferAgent& agent, net::Channel channel)
    : options_(std::move(options)), agent_(agent), channel_(std::move(channel)) {
  receiver_ = std::thread([this] { receive(); });
}

Connection::~Connection() {
  end();
  receiver_.join();
}

Connection::Use::~Use() {
  if (connection_ != nullptr)
    connection_->unuse();
}

Result<Connection::Answer> Connection::exchange(const std::function<std::string(MessageId)>& encode,
                                                Wait wait) {
  std::unique_lock lock(mutex_);
  if (ended_)
    return gone();
  const MessageId id = ++last_id_;
  waiting_.emplace(id, std::nullopt);
  lock.unlock();
  const Status sent = send(encode(id), wait.deadline);
  lock.lock();
  const auto answered = [&] { return ended_ || waiting_.at(id).has_value(); };
  const auto cancelled = [&] { return wait.cancelled != nullptr && wait.cancelled->load(); };
  while (sent && !answered() && !cancelled() && Clock::now() < wait.deadline)
    changed_.wait_until(lock, std::min(wait.deadline, Clock::now() + kCancelLatency), answered);
  std::optional<Answer> answer = std::move(waiting_.at(id));
  waiting_.erase(id);
  DM_TRY(sent);
  if (answer)
    return std::move(*answer);
  if (ended_)
    return gone();
  if (cancelled())
    return fail(ErrorCode::kCancelled, "the load was cancelled");
  return fail(ErrorCode::kDeadlineExceeded, "the peer did not answer in time");
}

Status Connection::send(std::string bytes, Time deadline) {
  const std::lock_guard lock(send_mutex_);
  return channel_.send({.bytes = std::move(bytes), .descriptors = {}}, deadline);
}

void Connection::receive() {
  constexpr std::chrono::hours kForever(1);
  for (;;) {
    auto message = channel_.receive(Clock::now() + kForever);
    if (!message && message.error().code == ErrorCode::kDeadlineExceeded)
      continue;
    if (!message || !dispatch(std::move(*message)))
      break;
  }
  end();
}

// kDataLoss: these are not the words of a peer of ours.
Status Connection::dispatch(net::Message message) {
  DM_TRY_ASSIGN(Json json, parse_msgpack(message.bytes));
  DM_TRY_ASSIGN(const MessageHead head, read_fields<MessageHead>(json, "message"));
  if (head.type == Revoke::kType) {
    DM_TRY_ASSIGN(const Revoke notice, read_fields<Revoke>(json, head.type));
    revoked(notice);
    return {};
  }
  const std::lock_guard lock(mutex_);
  const auto call = waiting_.find(head.id);
  if (call != waiting_.end())
    call->second = Answer{std::move(json), std::move(message.descriptors)};
  changed_.notify_all();
  return {};
}

void Connection::revoked(const Revoke& notice) {
  std::unique_lock lock(mutex_);
  revoking_ = notice.generation;
  drop_if_unused(lock);
}

void Connection::end() {
  std::unique_lock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
  drop_if_unused(lock);
}

bool Connection::alive() const {
  const std::lock_guard lock(mutex_);
  return !ended_ && !revoking_;
}

bool Connection::holds_memory() const {
  const std::lock_guard lock(mutex_);
  return memory_ != nullptr;
}

bool Connection::has_let_go() const {
  const std::lock_guard lock(mutex_);
  return ended_ && uses_ == 0 && memory_ == nullptr;
}

Result<Connection::Use> Connection::use(Wait wait) {
  std::unique_lock lock(mutex_);
  if (ended_ || revoking_)
    return gone();
  ++uses_;
  Use use(shared_from_this());
  const bool turn = changed_.wait_until(lock, wait.deadline, [this] { return !importing_; });
  if (turn && memory_ == nullptr) {
    importing_ = true;
    lock.unlock();
    const Status imported = import(wait);
    lock.lock();
    importing_ = false;
    changed_.notify_all();
    if (!imported) {
      lock.unlock();
      return tl::unexpected(imported.error());
    }
  }
  use.memory_ = memory_.get();
  use.generation_ = generation_;
  use.incarnation_ = incarnation_;
  lock.unlock();
  if (use.memory_ == nullptr)
    return fail(ErrorCode::kDeadlineExceeded, "the peer's memory was not imported in time");
  return use;
}

// Counts as a use: a revocation that comes meanwhile waits for what this brings.
Status Connection::import(Wait wait) {
  DM_TRY_ASSIGN(Answer answer, call(Import{options_.engine_id}, wait));
  using Reply = AnyMessage<Memory, Refused, Malformed>;
  DM_TRY_ASSIGN(Reply decoded, Reply::read(answer.message));
  if (const auto* refused = std::get_if<Refused>(&decoded.body))
    return fail(ErrorCode::kUnavailable, fmt::format("the import was refused: {}", refused->kind));
  if (const auto* malformed = std::get_if<Malformed>(&decoded.body))
    return fail(ErrorCode::kTransferFailed, "the import failed: " + malformed->reason);
  Memory& memory = std::get<Memory>(decoded.body);
  DM_TRY_ASSIGN(auto imported,
                agent_.import_memory({std::move(memory.metadata), std::move(answer.descriptors)}));
  const std::lock_guard lock(mutex_);
  memory_ = std::move(imported);
  generation_ = memory.generation;
  incarnation_ = std::move(memory.incarnation);
  return {};
}

void Connection::unuse() {
  std::unique_lock lock(mutex_);
  --uses_;
  drop_if_unused(lock);
}

// The owner is told after the mapping is gone, and the connection ends after that.
void Connection::drop_if_unused(std::unique_lock<std::mutex>& lock) {
  if (telling_ || uses_ > 0 || (!ended_ && !revoking_))
    return;
  const bool told = memory_ == nullptr && !revoking_;
  const Revoked word{revoking_.value_or(generation_)};
  memory_.reset();
  revoking_.reset();
  ended_ = true;
  telling_ = !told;
  changed_.notify_all();
  if (told)
    return channel_.shut_down();
  lock.unlock();
  if (const Status sent = post(word, Clock::now() + kSendTimeout); !sent)
    log(LogLevel::kDebug, kFolder, "the owner was not told that its memory is unmapped: {}",
        sent.error().message);
  lock.lock();
  telling_ = false;
  channel_.shut_down();
}

}  // namespace dormouse::pull
