#include "text/jinja/marked_string.h"

namespace dormouse::text::jinja {

void MarkedString::append(const MarkedString& other) {
  text_ += other.text_;
  marks_ += other.marks_;
}

void MarkedString::append_trusted(std::string_view text) {
  text_ += text;
  marks_.append(text.size(), kTrusted);
}

void MarkedString::append_as(std::string_view text, const MarkedString& source, std::size_t at) {
  text_ += text;
  marks_.append(text.size(), source.marks_[at]);
}

MarkedString MarkedString::substr(std::size_t at, std::size_t length) const {
  MarkedString part;
  part.text_ = text_.substr(at, length);
  part.marks_ = marks_.substr(at, length);
  return part;
}

std::vector<MarkedPiece> MarkedString::pieces() const {
  std::vector<MarkedPiece> pieces;
  for (std::size_t at = 0; at < size();) {
    const std::size_t end = std::min(size(), marks_.find_first_not_of(marks_[at], at));
    pieces.push_back({text_.substr(at, end - at), marks_[at] == kTrusted});
    at = end;
  }
  return pieces;
}

}  // namespace dormouse::text::jinja
