#include "server/generation.h"

#include <algorithm>
#include <ctime>

#include "base/log.h"
#include "server/replies.h"

namespace dormouse::server {

Generation::Generation(Parts parts)
    : parts_(std::move(parts)),
      format_(parts_.request, parts_.tokenizer, parts_.id, parts_.model, std::time(nullptr)),
      unfinished_(parts_.prompts.size() * parts_.request.n) {
  for (std::size_t i = 0; i < unfinished_; ++i) {
    Choice choice{.index = static_cast<std::uint32_t>(i)};
    if (parts_.request.echo)
      choice.text = parts_.tokenizer->decode(prompt_of(i), false);
    if (parts_.request.return_token_ids)
      choice.prompt = prompt_of(i);
    lanes_.push_back(Lane{.sequence = Sequence(parts_.tokenizer, parts_.request),
                          .choice = std::move(choice),
                          .last_token = arrived_,
                          .times = {}});
  }
}

Generation::~Generation() {
  parts_.registry->remove(parts_.id, this);
}

const std::vector<TokenId>& Generation::prompt_of(std::size_t lane) const {
  return parts_.prompts[lane / parts_.request.n];
}

Request Generation::engine_request(std::size_t lane) const {
  Request request{.prompt = prompt_of(lane),
                  .sampling = parts_.request.sampling,
                  .cache_salt = parts_.request.cache_salt,
                  .priority = parts_.request.priority};
  if (lane == 0)  // one transfer for one request; its other choices find the prompt or compute it
    request.kv_transfer_params = parts_.request.kv_transfer_params;
  request.sampling.seed += lane % parts_.request.n;  // as in vLLM: the n sequences differ
  if (parts_.request.chat && !parts_.request.max_tokens_given) {
    const std::uint32_t context = parts_.engine.status().max_model_len;
    request.sampling.max_tokens = context - static_cast<std::uint32_t>(request.prompt.size());
  }
  return request;
}

void Generation::submit() {
  const auto self = shared_from_this();
  parts_.registry->add(parts_.id, weak_from_this());
  parts_.writer->on_disconnect([weak = weak_from_this()] {
    if (const auto generation = weak.lock())
      generation->abort();
  });
  if (parts_.request.sampling.max_tokens == 0) {  // an echo of the prompt alone
    parts_.writer->post([self] { self->begin(); });
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      parts_.writer->post([self, i] { self->on_output(i, {.finished = FinishReason::kLength}); });
    return;
  }
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const auto sink = [self, i](RequestOutput output) {
      self->parts_.writer->post([self, i, output = std::move(output)]() mutable {
        self->on_output(i, std::move(output));
      });
    };
    const auto id = parts_.engine.submit(engine_request(i), sink);
    if (!id) {
      abort();
      parts_.metrics->refused(to_string(id.error().code));
      parts_.writer->post([self, error = id.error()] { self->fail(error); });
      return;
    }
    const std::lock_guard lock(ids_mutex_);
    ids_.push_back(*id);
    if (aborted_)
      parts_.engine.abort(*id);
  }
  parts_.metrics->accepted(parts_.request.n, engine_request(0).sampling.max_tokens);
  parts_.writer->post([self] { self->begin(); });
}

std::size_t Generation::abort() {
  const std::lock_guard lock(ids_mutex_);
  aborted_ = true;
  for (const RequestId id : ids_)
    parts_.engine.abort(id);
  return ids_.size();
}

void Generation::begin() {
  begun_ = true;
  if (parts_.request.stream) {
    parts_.writer->start_stream({.content_type = "text/event-stream; charset=utf-8",
                                 .headers = {{"Cache-Control", "no-cache"}}});
    for (const Lane& lane : lanes_) {
      if (parts_.request.chat)
        send(format_.role_chunk(lane.choice.index, prompt_of(lane.choice.index)));
      else if (parts_.request.echo || parts_.request.return_token_ids)
        send(format_.chunk(lane.choice, nullptr));
    }
  }
  for (auto& [lane, output] : std::exchange(early_, {}))
    on_output(lane, std::move(output));
}

void Generation::on_output(std::size_t index, RequestOutput output) {
  if (!begun_) {
    early_.emplace_back(index, std::move(output));
    return;
  }
  Lane& lane = lanes_[index];
  const Sequence::Delta delta = lane.sequence.push(output);
  measure(lane, delta);
  if (delta.matched_stop && !output.finished)
    parts_.engine.abort(output.id);
  if (output.finished == FinishReason::kError)
    fail(output.error);
  if (parts_.request.stream) {
    stream(index, delta);
  } else {
    lane.choice.text += delta.text;
    lane.choice.tokens.insert(lane.choice.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  }
  if (output.finished) {
    lane.times = output.times;
    if (!output.kv_transfer_params.empty())
      kv_transfer_params_ = std::move(output.kv_transfer_params);
    finish_lane(index);
  }
}

void Generation::stream(std::size_t index, const Sequence::Delta& delta) {
  const bool wants_tokens =
      parts_.request.return_token_ids || parts_.request.sampling.logprobs >= 0;
  if (answered_ || (delta.text.empty() && (delta.tokens.empty() || !wants_tokens)))
    return;
  send_chunk({.index = lanes_[index].choice.index, .text = delta.text, .tokens = delta.tokens});
}

void Generation::measure(Lane& lane, const Sequence::Delta& delta) {
  if (delta.tokens.empty())
    return;
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - lane.last_token).count();
  const std::size_t before = lane.sequence.completion_tokens() - delta.tokens.size();
  if (before == 0)
    parts_.metrics->first_token(seconds);
  else
    parts_.metrics->next_tokens(seconds, delta.tokens.size());
  lane.last_token = now;
}

void Generation::finish_lane(std::size_t index) {
  Lane& lane = lanes_[index];
  lane.choice.finish_reason = lane.sequence.finish_reason();
  lane.choice.stop_reason = lane.sequence.stop_reason();
  parts_.metrics->finished(
      {.reason = lane.choice.finish_reason,
       .seconds = std::chrono::duration<double>(Clock::now() - arrived_).count(),
       .prompt_tokens = static_cast<std::uint32_t>(prompt_of(index).size()),
       .generation_tokens = lane.sequence.completion_tokens(),
       .times = lane.times});
  if (parts_.request.stream && !answered_)
    send_chunk({.index = lane.choice.index,
                .finish_reason = lane.choice.finish_reason,
                .stop_reason = lane.choice.stop_reason});
  if (--unfinished_ == 0)
    finish();
}

void Generation::finish() {
  parts_.registry->remove(parts_.id, this);
  std::uint32_t longest = 0;
  for (const Lane& lane : lanes_)
    longest = std::max(longest, lane.sequence.completion_tokens());
  parts_.metrics->longest_answer(longest);
  if (std::exchange(answered_, true))
    return;
  if (!parts_.request.stream) {
    std::vector<Choice> choices;
    for (Lane& lane : lanes_)
      choices.push_back(std::move(lane.choice));
    parts_.writer->reply(json_response(format_.whole(choices, usage(), transfer_json())));
    return;
  }
  if (!kv_transfer_params_.empty())
    send(format_.transfer_chunk(transfer_json()));
  if (parts_.request.include_usage)
    send(format_.usage_chunk(usage()));
  parts_.writer->write("data: [DONE]\n\n");
  parts_.writer->finish();
}

void Generation::fail(const Error& error) {
  if (std::exchange(answered_, true))
    return;
  abort();
  const int status = http_status(error.code, Audience::kUser);
  if (status == 500)
    log(LogLevel::kError, "server", "request {} failed: {}", parts_.id, error.message);
  if (!begun_ || !parts_.request.stream) {
    parts_.writer->reply(error_response(error, Audience::kUser));
    return;
  }
  send(error_body(status, public_message(error), error.param));
  parts_.writer->write("data: [DONE]\n\n");
  parts_.writer->finish();
}

void Generation::send_chunk(const Choice& choice) {
  if (!parts_.request.continuous_usage)
    return send(format_.chunk(choice, nullptr));
  const Usage now = usage();
  send(format_.chunk(choice, &now));
}

void Generation::send(const Json& chunk) {
  parts_.writer->write("data: " + chunk.dump() + "\n\n");
}

Json Generation::transfer_json() const {
  auto params =
      kv_transfer_params_.empty() ? Result<Json>(Json()) : parse_json(kv_transfer_params_);
  return params ? std::move(*params) : Json();
}

Usage Generation::usage() const {
  Usage usage;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    usage.completion_tokens += lanes_[i].sequence.completion_tokens();
    if (i % parts_.request.n == 0) {
      usage.prompt_tokens += prompt_of(i).size();
      usage.cached_tokens += lanes_[i].sequence.cached_tokens();
    }
  }
  return usage;
}

}  // namespace dormouse::server
