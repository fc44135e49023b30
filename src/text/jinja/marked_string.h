// A string in which every byte knows whether the template or a user wrote it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/marked_text.h"

namespace dormouse::text::jinja {

// Every operation of the template language keeps the marks of the bytes it moves. Offsets count
// bytes.
class MarkedString {
 public:
  MarkedString() = default;
  static MarkedString trusted(std::string text) { return {std::move(text), kTrusted}; }
  static MarkedString untrusted(std::string text) { return {std::move(text), kUntrusted}; }

  const std::string& text() const { return text_; }
  std::size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

  void append(const MarkedString& other);
  void append_trusted(std::string_view text);
  // Appends `text` with the mark of the byte `at` of `source`.
  void append_as(std::string_view text, const MarkedString& source, std::size_t at);
  MarkedString substr(std::size_t at, std::size_t length = std::string::npos) const;

  // Runs of bytes of one mark.
  std::vector<MarkedPiece> pieces() const;

 private:
  static constexpr char kTrusted = 1;
  static constexpr char kUntrusted = 0;
  MarkedString(std::string text, char mark) : text_(std::move(text)), marks_(text_.size(), mark) {}

  std::string text_;
  std::string marks_;  // one for each byte of text_
};

}  // namespace dormouse::text::jinja
