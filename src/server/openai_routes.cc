#include "server/openai_routes.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/check.h"
#include "base/field_reader.h"
#include "base/log.h"
#include "server/generation.h"
#include "server/prompt.h"
#include "server/replies.h"
#include "text/tokenizer.h"

namespace dormouse::server {
namespace {

constexpr std::size_t kMaxWarnings = 64;
constexpr const char* kCompletionPrefix = "cmpl-";
constexpr const char* kChatPrefix = "chatcmpl-";
constexpr std::size_t kMaxIdBytes = 128;
constexpr std::size_t kMaxTokens = 1 << 20;

// The client's own id if it is a plain one, else a random one.
std::string base_id(const HttpRequest& request) {
  const std::string_view given = request.header("x-request-id");
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  };
  if (!given.empty() && given.size() <= kMaxIdBytes &&
      std::all_of(given.begin(), given.end(), plain))
    return std::string(given);
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i)
    id += fmt::format("{:08x}", random());
  return id;
}

HttpResponse answer(const Result<Json>& result) {
  return result ? json_response(*result) : error_response(result.error(), Audience::kUser);
}

HttpResponse aborted(std::size_t count) {
  return json_response(Json().add("status", "aborted").add("aborted", count));
}

Result<Json> body_object(const HttpRequest& request) {
  Json body;
  DM_TRY_ASSIGN(body, parse_json(request.body));
  if (body.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object", "body");
  return body;
}

Result<Json> do_tokenize(const Engine& engine, const HttpRequest& request) {
  Json body;
  DM_TRY_ASSIGN(body, body_object(request));
  FieldReader fields(body);
  std::string text;
  bool add_special_tokens = true, add_generation_prompt = true, return_strings = false;
  fields.string("prompt", text, request.body.size());
  fields.flag("add_special_tokens", add_special_tokens);
  fields.flag("add_generation_prompt", add_generation_prompt);
  fields.flag("return_token_strs", return_strings);
  DM_TRY(fields.status());

  std::vector<TokenId> ids;
  if (const Json* messages = fields.find("messages")) {
    std::vector<ChatTurn> turns;
    DM_TRY_ASSIGN(turns, read_messages(*messages));
    DM_TRY_ASSIGN(ids, tokenize_chat(engine, turns, add_generation_prompt));
  } else if (fields.find("prompt") != nullptr) {
    DM_TRY_ASSIGN(ids, tokenize_text(engine, text, add_special_tokens));
  } else {
    return fail(ErrorCode::kInvalidArgument, "give a prompt or messages", "prompt");
  }
  Json strings{Json::Array()};
  for (const TokenId id : ids)
    strings.push(engine.tokenizer()->piece_bytes(id));
  Json reply;
  reply.add("count", ids.size());
  reply.add("max_model_len", engine.status().max_model_len);
  reply.add("tokens", Json(Json::Array(ids.begin(), ids.end())));
  reply.add("token_strs", return_strings ? std::move(strings) : Json());
  return reply;
}

Result<Json> do_detokenize(const Engine& engine, const HttpRequest& request) {
  Json body;
  DM_TRY_ASSIGN(body, body_object(request));
  FieldReader fields(body);
  std::vector<TokenId> ids;
  fields.token_ids("tokens", ids, kMaxTokens);
  if (fields.find("tokens") == nullptr)
    fields.fail("tokens", "tokens must be a list of token ids");
  DM_TRY(fields.status());
  const auto tokenizer = engine.tokenizer();
  if (tokenizer == nullptr)
    return fail(ErrorCode::kUnavailable, "the model is still being loaded");
  for (const TokenId id : ids) {
    if (!tokenizer->contains(id))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tokens: {} is not in the vocabulary of {} tokens", id,
                              tokenizer->vocab_size()),
                  "tokens");
  }
  return Json().add("prompt", tokenizer->decode(ids, false));
}

}  // namespace

OpenAiRoutes::OpenAiRoutes(Engine& engine)
    : engine_(engine),
      metrics_(std::make_shared<RequestMetrics>()),
      registry_(std::make_shared<RequestRegistry>()) {}

void OpenAiRoutes::completions(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  serve(request, writer, read_completion);
}

void OpenAiRoutes::chat_completions(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  serve(request, writer, read_chat);
}

void OpenAiRoutes::serve(const HttpRequest& http, const std::shared_ptr<ResponseWriter>& writer,
                         Reader read) {
  if (const Status started = start(http, writer, read); !started) {
    metrics_->refused(to_string(started.error().code));
    writer->reply(error_response(started.error(), Audience::kUser));
  }
}

Status OpenAiRoutes::start(const HttpRequest& http, const std::shared_ptr<ResponseWriter>& writer,
                           Reader read) {
  Json body;
  DM_TRY_ASSIGN(body, parse_json(http.body));
  OpenAiRequest request;
  DM_TRY_ASSIGN(request, read(body));
  warn_once(request.unknown_fields);
  const std::string model = engine_.status().served_model_name;
  if (!request.model.empty() && request.model != model)
    return fail(ErrorCode::kNotFound, fmt::format("The model `{}` does not exist.", request.model),
                "model");
  std::vector<std::vector<TokenId>> prompts;
  DM_TRY_ASSIGN(prompts, tokenize_prompts(engine_, request));
  const std::string id = (request.chat ? kChatPrefix : kCompletionPrefix) + base_id(http);
  std::make_shared<Generation>(Generation::Parts{.engine = engine_,
                                                 .metrics = metrics_,
                                                 .registry = registry_,
                                                 .tokenizer = engine_.tokenizer(),
                                                 .writer = writer,
                                                 .request = std::move(request),
                                                 .prompts = std::move(prompts),
                                                 .id = id,
                                                 .model = model})
      ->submit();
  return {};
}

void OpenAiRoutes::warn_once(const std::vector<std::string>& unknown_fields) {
  const std::lock_guard lock(warned_mutex_);
  for (const std::string& name : unknown_fields) {
    if (warned_.size() < kMaxWarnings && warned_.insert(name).second)
      log(LogLevel::kWarning, "server", "unknown request field ignored: {}", Json(name).dump());
  }
}

HttpResponse OpenAiRoutes::tokenize(const HttpRequest& request) {
  return answer(do_tokenize(engine_, request));
}

HttpResponse OpenAiRoutes::detokenize(const HttpRequest& request) {
  return answer(do_detokenize(engine_, request));
}

HttpResponse OpenAiRoutes::abort_requests(const HttpRequest& request) {
  std::vector<std::string> ids;
  if (!request.body.empty()) {
    const auto body = body_object(request);
    if (!body)
      return error_response(body.error(), Audience::kOperator);
    FieldReader fields(*body);
    fields.strings("request_ids", ids, kMaxTokens, kMaxIdBytes + 16);
    if (!fields.status())
      return error_response(fields.status().error(), Audience::kOperator);
  }
  return ids.empty() ? abort_everything() : abort_these(ids);
}

HttpResponse OpenAiRoutes::abort_request(const HttpRequest& request) {
  const auto body = body_object(request);
  if (!body)
    return error_response(body.error(), Audience::kOperator);
  FieldReader fields(*body);
  bool everything = false;
  std::vector<std::string> ids;
  fields.flag("abort_all", everything);
  fields.strings("rid", ids, kMaxTokens, kMaxIdBytes + 16);
  if (!everything && ids.empty())
    fields.fail("rid", "give a rid, or abort_all");
  if (!fields.status())
    return error_response(fields.status().error(), Audience::kOperator);
  return everything ? abort_everything() : abort_these(ids);
}

HttpResponse OpenAiRoutes::abort_everything() {
  return aborted(engine_.abort_all());
}

// A request's own id, or the X-Request-Id that it was made of.
HttpResponse OpenAiRoutes::abort_these(const std::vector<std::string>& ids) {
  std::size_t count = 0;
  for (const std::string& id : ids)
    for (const auto& generation : registry_->find({id, kCompletionPrefix + id, kChatPrefix + id}))
      count += generation->abort();
  return aborted(count);
}

HttpResponse OpenAiRoutes::load() const {
  return json_response(Json().add("server_load", registry_->size()));
}

}  // namespace dormouse::server
