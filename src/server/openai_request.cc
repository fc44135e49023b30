#include "server/openai_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>

#include "base/check.h"
#include "base/field_reader.h"

namespace dormouse::server {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxN = 128;
constexpr std::size_t kMaxSequences = 1024;  // prompts times n
constexpr std::size_t kMaxPromptTokens = 1 << 20;
constexpr std::size_t kMaxStopStrings = 64;
constexpr std::size_t kMaxStopBytes = 1024;
constexpr std::size_t kMaxStopTokens = 128;
constexpr std::size_t kMaxLogitBias = 1024;
constexpr std::int64_t kMaxLogprobs = 20;
constexpr std::size_t kMaxSaltBytes = 256;
constexpr std::size_t kMaxTransferBytes = 1 << 20;
constexpr std::size_t kMaxNameBytes = 256;
constexpr double kMaxRepetitionPenalty = 100;

// Refused if present with any value but null, false, "none", "auto", or an empty list or object.
constexpr std::string_view kUnsupported[] = {"tools",
                                             "tool_choice",
                                             "functions",
                                             "function_call",
                                             "guided_json",
                                             "guided_regex",
                                             "guided_choice",
                                             "guided_grammar",
                                             "structured_outputs",
                                             "prompt_logprobs",
                                             "suffix",
                                             "bad_words",
                                             "allowed_token_ids",
                                             "use_beam_search",
                                             "truncate_prompt_tokens",
                                             "logits_processors",
                                             "prompt_embeds",
                                             "audio",
                                             "prediction",
                                             "web_search_options",
                                             "chat_template",
                                             "chat_template_kwargs",
                                             "documents",
                                             "continue_final_message",
                                             "mm_processor_kwargs",
                                             "lora_request",
                                             "logprob_token_ids",
                                             "dry_multiplier",
                                             "mirostat"};

constexpr std::string_view kKnown[] = {"model",
                                       "prompt",
                                       "messages",
                                       "add_special_tokens",
                                       "add_generation_prompt",
                                       "n",
                                       "stream",
                                       "stream_options",
                                       "echo",
                                       "return_token_ids",
                                       "skip_special_tokens",
                                       "include_stop_str_in_output",
                                       "stop",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "seed",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "logit_bias",
                                       "max_tokens",
                                       "max_completion_tokens",
                                       "min_tokens",
                                       "ignore_eos",
                                       "stop_token_ids",
                                       "logprobs",
                                       "top_logprobs",
                                       "cache_salt",
                                       "kv_transfer_params",
                                       "priority",
                                       "user",
                                       "best_of",
                                       "response_format",
                                       "modalities",
                                       "parallel_tool_calls",
                                       "store",
                                       "metadata",
                                       "service_tier",
                                       "reasoning_effort",
                                       "verbosity",
                                       "safety_identifier",
                                       "prompt_cache_key",
                                       "request_id",
                                       "return_tokens_as_token_ids",
                                       "spaces_between_special_tokens",
                                       "length_penalty",
                                       "detokenize",
                                       "include_reasoning",
                                       "return_as_token_id"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool asks_for_nothing(const Json& value) {
  if (const bool* flag = value.boolean())
    return !*flag;
  if (const std::string* text = value.string())
    return text->empty() || *text == "none" || *text == "auto";
  if (const auto* items = value.array())
    return items->empty();
  if (const auto* members = value.object())
    return members->empty();
  return value.is_null() || (value.is_number() && value.as_double() == 0);
}

void refuse_unsupported(FieldReader& fields, const Json& body, OpenAiRequest& request) {
  for (const auto& [name, value] : *body.object()) {
    if (contains(kUnsupported, name)) {
      if (!asks_for_nothing(value))
        fields.fail(name, fmt::format("{} is not supported by this server", name),
                    ErrorCode::kUnsupported);
    } else if (!contains(kKnown, name) && !value.is_null()) {
      request.unknown_fields.push_back(name.substr(0, 64));
    }
  }
  const Json* format = fields.find("response_format");
  const Json* type = format == nullptr ? nullptr : format->find("type");
  if (format != nullptr &&
      (type == nullptr || type->string() == nullptr || *type->string() != "text"))
    fields.fail("response_format", "response_format: only {\"type\":\"text\"} is supported",
                ErrorCode::kUnsupported);
  if (const Json* best_of = fields.find("best_of");
      best_of != nullptr && whole_number(*best_of, 1, 1) != 1)
    fields.fail("best_of", "best_of is not supported by this server; only 1 is accepted",
                ErrorCode::kUnsupported);
  if (const Json* modalities = fields.find("modalities")) {
    const auto* list = modalities->array();
    const bool text_only = list != nullptr && list->size() == 1 &&
                           list->front().string() != nullptr && *list->front().string() == "text";
    if (!text_only)
      fields.fail("modalities", "modalities: only [\"text\"] is supported",
                  ErrorCode::kUnsupported);
  }
}

void read_logit_bias(FieldReader& fields, SamplingParams& sampling) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr)
    return;
  const auto* members = bias->object();
  if (members == nullptr || members->size() > kMaxLogitBias)
    return fields.fail(
        "logit_bias",
        fmt::format("logit_bias must be an object of at most {} token ids", kMaxLogitBias));
  for (const auto& [name, value] : *members) {
    TokenId token = 0;
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    const bool is_id = error == std::errc() && stop == name.data() + name.size() && token >= 0;
    const double number = value.as_double();
    if (!is_id || !value.is_number() || !(number >= -100 && number <= 100))
      return fields.fail("logit_bias", "logit_bias must map token ids to numbers from -100 to 100");
    sampling.logit_bias[token] = static_cast<float>(number);
  }
}

void read_sampling(FieldReader& fields, SamplingParams& sampling) {
  fields.number("temperature", sampling.temperature, 0, 2);
  fields.number("top_p", sampling.top_p, 0, 1);
  fields.integer("top_k", sampling.top_k, -1, kMaxCount);
  if (sampling.top_k == -1)  // vLLM's other word for no limit
    sampling.top_k = 0;
  fields.number("min_p", sampling.min_p, 0, 1);
  fields.number("presence_penalty", sampling.presence_penalty, -2, 2);
  fields.number("frequency_penalty", sampling.frequency_penalty, -2, 2);
  fields.number("repetition_penalty", sampling.repetition_penalty, 0, kMaxRepetitionPenalty);
  std::int64_t seed = -1;  // as in vLLM: none
  fields.integer("seed", seed, -1, std::numeric_limits<std::int64_t>::max());
  sampling.seeded = seed >= 0;
  sampling.seed = sampling.seeded ? static_cast<std::uint64_t>(seed) : 0;
  fields.integer("min_tokens", sampling.min_tokens, 0, kMaxCount);
  fields.flag("ignore_eos", sampling.ignore_eos);
  fields.token_ids("stop_token_ids", sampling.stop_token_ids, kMaxStopTokens);
  read_logit_bias(fields, sampling);
}

void read_stream_options(FieldReader& fields, OpenAiRequest& request) {
  const Json* options = fields.find("stream_options");
  if (options == nullptr)
    return;
  if (options->object() == nullptr)
    return fields.fail("stream_options", "stream_options must be an object");
  if (!request.stream)
    return fields.fail("stream_options", "stream_options needs \"stream\": true");
  FieldReader inner(*options);
  inner.flag("include_usage", request.include_usage);
  inner.flag("continuous_usage_stats", request.continuous_usage);
  if (!inner.status())
    fields.fail("stream_options", inner.status().error().message);
}

// An object, whose keys the engine's KV connector knows; it belongs to one prompt.
void read_kv_transfer_params(FieldReader& fields, OpenAiRequest& request) {
  const Json* params = fields.find("kv_transfer_params");
  if (params == nullptr)
    return;
  if (params->object() == nullptr)
    return fields.fail("kv_transfer_params", "kv_transfer_params must be an object");
  request.kv_transfer_params = params->dump();
  if (request.kv_transfer_params.size() > kMaxTransferBytes)
    fields.fail("kv_transfer_params",
                fmt::format("kv_transfer_params must have at most {} bytes", kMaxTransferBytes));
}

void read_shared(FieldReader& fields, const Json& body, OpenAiRequest& request) {
  refuse_unsupported(fields, body, request);
  fields.string("model", request.model, kMaxNameBytes);
  fields.flag("add_special_tokens", request.add_special_tokens);
  fields.integer("n", request.n, 1, kMaxN);
  fields.flag("stream", request.stream);
  read_stream_options(fields, request);
  fields.flag("return_token_ids", request.return_token_ids);
  fields.flag("skip_special_tokens", request.skip_special_tokens);
  fields.flag("include_stop_str_in_output", request.include_stop_str_in_output);
  fields.strings("stop", request.stop, kMaxStopStrings, kMaxStopBytes);
  fields.string("cache_salt", request.cache_salt, kMaxSaltBytes);
  fields.integer("priority", request.priority, std::numeric_limits<std::int32_t>::min(), kMaxCount);
  read_kv_transfer_params(fields, request);
  std::string user;
  fields.string("user", user, kMaxNameBytes);
  request.max_tokens_given =
      fields.find("max_tokens") != nullptr || fields.find("max_completion_tokens") != nullptr;
  const int least = request.echo ? 0 : 1;
  fields.integer("max_tokens", request.sampling.max_tokens, least, kMaxCount);
  fields.integer("max_completion_tokens", request.sampling.max_tokens, least, kMaxCount);
  read_sampling(fields, request.sampling);
}

// The last checks: what depends on more than one field.
Status check(const FieldReader& fields, const OpenAiRequest& request) {
  DM_TRY(fields.status());
  if (request.max_tokens_given && request.sampling.min_tokens > request.sampling.max_tokens)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("min_tokens ({}) must not exceed max_tokens ({})",
                            request.sampling.min_tokens, request.sampling.max_tokens),
                "min_tokens");
  if (!request.kv_transfer_params.empty() && request.prompts.size() > 1)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("kv_transfer_params belong to one prompt, and there are {}. Send each "
                            "prompt in a request of its own",
                            request.prompts.size()),
                "kv_transfer_params");
  SamplingParams sampling = request.sampling;
  if (!request.max_tokens_given && request.chat)
    sampling.max_tokens = std::max(sampling.max_tokens, sampling.min_tokens);
  if (request.echo)  // may be all that is asked for
    sampling.max_tokens = std::max(sampling.max_tokens, 1U);
  return validate(sampling);
}

Result<std::vector<TokenId>> prompt_ids(const Json::Array& items) {
  std::vector<TokenId> ids;
  ids.reserve(items.size());
  for (const Json& item : items) {
    const auto id = whole_number(item, 0, std::numeric_limits<TokenId>::max());
    if (!id)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("prompt: {} is not a token id", excerpt(item)), "prompt");
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

Result<std::vector<Prompt>> read_prompts(const Json* value) {
  const auto invalid = [] {
    return fail(
        ErrorCode::kInvalidArgument,
        "prompt must be a string, a list of strings, a list of token ids, or a list of such "
        "lists, and not empty",
        "prompt");
  };
  if (value == nullptr)
    return invalid();
  if (const std::string* text = value->string())
    return std::vector<Prompt>{*text};
  const auto* items = value->array();
  if (items == nullptr || items->empty() || items->size() > kMaxPromptTokens)
    return invalid();
  std::vector<Prompt> prompts;
  if (items->front().is_number()) {
    std::vector<TokenId> ids;
    DM_TRY_ASSIGN(ids, prompt_ids(*items));
    prompts.push_back(std::move(ids));
    return prompts;
  }
  for (const Json& item : *items) {
    if (const std::string* text = item.string()) {
      prompts.emplace_back(*text);
    } else if (const auto* ids = item.array()) {
      std::vector<TokenId> prompt;
      DM_TRY_ASSIGN(prompt, prompt_ids(*ids));
      prompts.push_back(std::move(prompt));
    } else {
      return invalid();
    }
  }
  return prompts;
}

// A message's content: a string, or parts of type "text".
Result<std::string> read_content(const Json* content) {
  if (content == nullptr || content->is_null())
    return std::string();
  if (const std::string* text = content->string())
    return *text;
  if (content->array() == nullptr)
    return fail(ErrorCode::kInvalidArgument,
                "messages: content must be a string or a list of parts", "messages");
  std::string joined;
  for (const Json& part : *content->array()) {
    const Json* type = part.find("type");
    const Json* text = part.find("text");
    if (type == nullptr || type->string() == nullptr || *type->string() != "text")
      return fail(ErrorCode::kUnsupported, "messages: only parts of type \"text\" are supported",
                  "messages");
    if (text == nullptr || text->string() == nullptr)
      return fail(ErrorCode::kInvalidArgument, "messages: a part of type \"text\" needs a \"text\"",
                  "messages");
    if (!joined.empty())
      joined += '\n';
    joined += *text->string();
  }
  return joined;
}

}  // namespace

Result<std::vector<ChatTurn>> read_messages(const Json& messages) {
  if (messages.array() == nullptr || messages.array()->empty())
    return fail(ErrorCode::kInvalidArgument, "messages must be a list of at least one message",
                "messages");
  std::vector<ChatTurn> turns;
  for (const Json& message : *messages.array()) {
    const Json* role = message.find("role");
    if (role == nullptr || role->string() == nullptr || role->string()->empty())
      return fail(ErrorCode::kInvalidArgument, "messages: each message needs a role", "messages");
    const Json* calls = message.find("tool_calls");
    if (calls != nullptr && !asks_for_nothing(*calls))
      return fail(ErrorCode::kUnsupported, "messages: tool_calls are not supported by this server",
                  "messages");
    ChatTurn turn{.role = *role->string()};
    DM_TRY_ASSIGN(turn.content, read_content(message.find("content")));
    if (const Json* name = message.find("name"); name != nullptr && name->string() != nullptr)
      turn.name = *name->string();
    turns.push_back(std::move(turn));
  }
  return turns;
}

Result<OpenAiRequest> read_completion(const Json& body) {
  if (body.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object", "body");
  OpenAiRequest request;
  FieldReader fields(body);
  fields.flag("echo", request.echo);
  read_shared(fields, body, request);
  fields.integer("logprobs", request.sampling.logprobs, 0, kMaxLogprobs);
  if (request.echo && request.sampling.logprobs >= 0)
    fields.fail("echo", "echo together with logprobs is not supported by this server",
                ErrorCode::kUnsupported);
  DM_TRY(check(fields, request));
  DM_TRY_ASSIGN(request.prompts, read_prompts(fields.find("prompt")));
  if (request.prompts.size() * request.n > kMaxSequences)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} prompts times n = {} exceed {} sequences", request.prompts.size(),
                            request.n, kMaxSequences),
                "n");
  return request;
}

Result<OpenAiRequest> read_chat(const Json& body) {
  if (body.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object", "body");
  OpenAiRequest request;
  request.chat = true;
  FieldReader fields(body);
  read_shared(fields, body, request);
  fields.flag("add_generation_prompt", request.add_generation_prompt);
  bool logprobs = false;
  fields.flag("logprobs", logprobs);
  if (logprobs)
    request.sampling.logprobs = 0;
  if (!logprobs && fields.find("top_logprobs") != nullptr)
    fields.fail("top_logprobs", "top_logprobs needs \"logprobs\": true");
  fields.integer("top_logprobs", request.sampling.logprobs, 0, kMaxLogprobs);
  DM_TRY(check(fields, request));
  const Json* messages = fields.find("messages");
  DM_TRY_ASSIGN(request.messages, read_messages(messages == nullptr ? Json() : *messages));
  return request;
}

}  // namespace dormouse::server
