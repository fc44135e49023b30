#include "text/special_tokens.h"

#include <algorithm>

namespace dormouse::text {

void SpecialTokens::add(std::string text, TokenId token, bool control) {
  std::vector<Entry>& entries = by_first_byte_[text.front()];
  const auto shorter = [&](const Entry& entry) { return entry.text.size() < text.size(); };
  entries.insert(std::find_if(entries.begin(), entries.end(), shorter),
                 Entry{text, token, control});
}

std::optional<SpecialTokens::Match> SpecialTokens::match(std::string_view text,
                                                         std::size_t trusted_length) const {
  const auto entries = by_first_byte_.find(text.front());
  if (entries == by_first_byte_.end())
    return std::nullopt;
  for (const Entry& entry : entries->second) {
    const bool allowed = !entry.control || entry.text.size() <= trusted_length;
    if (allowed && text.starts_with(entry.text))
      return Match{entry.token, entry.text.size()};
  }
  return std::nullopt;
}

}  // namespace dormouse::text
