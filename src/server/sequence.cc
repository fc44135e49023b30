#include "server/sequence.h"

#include <algorithm>

namespace dormouse::server {

Sequence::Sequence(std::shared_ptr<const text::Tokenizer> tokenizer, const OpenAiRequest& request)
    : tokenizer_(std::move(tokenizer)),
      sampling_(request.sampling),
      include_stop_(request.include_stop_str_in_output),
      detokenizer_(tokenizer_, request.skip_special_tokens),
      stops_(request.stop, request.include_stop_str_in_output) {}

bool Sequence::is_stop_token(TokenId token) const {
  const auto& stops = sampling_.stop_token_ids;
  return std::find(stops.begin(), stops.end(), token) != stops.end() ||
         (!sampling_.ignore_eos && tokenizer_->is_end_of_generation(token));
}

std::string Sequence::text_of(const GeneratedToken& token) {
  if (is_stop_token(token.token) && !include_stop_)
    return {};
  return tokenizer_->contains(token.token) ? detokenizer_.push(token.token) : std::string();
}

Sequence::Delta Sequence::push(const RequestOutput& output) {
  Delta delta;
  for (const GeneratedToken& token : output.tokens) {
    if (finished() || matched_stop())
      break;
    ++count_;
    delta.tokens.push_back(token);
    const std::string text = text_of(token);
    if (count_ <= sampling_.min_tokens) {  // stop strings do not count yet
      delta.text += text;
      continue;
    }
    auto emitted = stops_.push(text);
    delta.text += emitted.text;
    delta.matched_stop = emitted.matched;
  }
  if (!output.finished || finished())
    return delta;
  finish_ = output.finished;
  stop_token_ = output.stop_token;
  cached_tokens_ = output.cached_tokens;
  if (!matched_stop()) {
    auto rest = stops_.push(detokenizer_.flush());
    delta.text += rest.text;
    if (!rest.matched)
      delta.text += stops_.flush();
  }
  return delta;
}

std::string_view Sequence::finish_reason() const {
  return to_string(matched_stop() ? FinishReason::kStop : *finish_);
}

Json Sequence::stop_reason() const {
  if (stops_.matched())
    return Json(*stops_.matched());
  const auto& stops = sampling_.stop_token_ids;
  if (stop_token_ && std::find(stops.begin(), stops.end(), *stop_token_) != stops.end())
    return Json(*stop_token_);
  return Json();
}

}  // namespace dormouse::server
