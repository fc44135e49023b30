// Reads the golden files of the tests: lines of escaped text. For tests only.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "dormouse/request.h"

namespace dormouse::text {

// \n, \t, \r and \\ back to what they stand for.
inline std::string unescape(std::string_view escaped) {
  std::string text;
  for (std::size_t i = 0; i < escaped.size(); ++i) {
    if (escaped[i] != '\\') {
      text.push_back(escaped[i]);
      continue;
    }
    const char c = escaped[++i];
    text.push_back(c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c);
  }
  return text;
}

// A line cut at its first `separator`.
inline std::pair<std::string, std::string> cut(const std::string& line, char separator) {
  const std::size_t at = line.find(separator);
  if (at == std::string::npos)
    return {line, ""};
  return {line.substr(0, at), line.substr(at + 1)};
}

// The lines of a golden file but for comments. Tests that run elsewhere than they were built say
// where the files are by DORMOUSE_GOLDEN_DIR.
inline std::vector<std::string> golden_lines(const std::string& name) {
  const char* folder = std::getenv("DORMOUSE_GOLDEN_DIR");
  std::vector<std::string> lines;
  std::ifstream file(std::string(folder ? folder : DM_GOLDEN_DIR) + "/" + name, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("# oracle"))
      lines.push_back(line);
  }
  return lines;
}

// What the oracle made of one text.
struct TokenizerRow {
  std::string scheme;
  std::string text;
  std::vector<TokenId> ids;
};

// Of "SCHEME TEXT TAB ID ID ...".
inline TokenizerRow parse_tokenizer_row(const std::string& line) {
  TokenizerRow row;
  const auto [scheme, rest] = cut(line, ' ');
  const auto [text, ids] = cut(rest, '\t');
  row.scheme = scheme;
  row.text = unescape(text);
  std::istringstream numbers(ids);
  for (TokenId id = 0; numbers >> id;)
    row.ids.push_back(id);
  return row;
}

}  // namespace dormouse::text
