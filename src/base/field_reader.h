// Reads the members of a JSON object that a user sent, and remembers the first that is wrong.
//
// A member that is absent or null leaves its target as it was. Types are not converted: a number in
// a string is an error, a whole number written as 2.0 is not. Names outlive the reader.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dormouse/request.h"
#include "dormouse/result.h"

namespace dormouse {

class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  // The member, or null if it is absent or null.
  const Json* find(std::string_view name);

  void number(std::string_view name, float& target, double min, double max);
  // A number of seconds, from 50 ms to a day.
  void seconds(std::string_view name, std::chrono::steady_clock::duration& target);
  void flag(std::string_view name, bool& target);
  void string(std::string_view name, std::string& target, std::size_t max_bytes);
  // A string or a list of strings, none empty.
  void strings(std::string_view name, std::vector<std::string>& target, std::size_t max_count,
               std::size_t max_bytes);
  void token_ids(std::string_view name, std::vector<TokenId>& target, std::size_t max_count);

  template <class Integer>
  void integer(std::string_view name, Integer& target, std::int64_t min, std::int64_t max) {
    if (const auto value = read_integer(name, min, max))
      target = static_cast<Integer>(*value);
  }

  void fail(std::string_view name, std::string message,
            ErrorCode code = ErrorCode::kInvalidArgument);
  // Fails for a member that nothing above was called for, and names those that are known.
  void refuse_others();
  const Status& status() const { return status_; }

 private:
  std::optional<std::int64_t> read_integer(std::string_view name, std::int64_t min,
                                           std::int64_t max);

  const Json& object_;
  std::vector<std::string_view> known_;
  Status status_;
};

// The value as an integer of this range; nothing if it is anything else.
std::optional<std::int64_t> whole_number(const Json& value, std::int64_t min, std::int64_t max);

// A value as it may stand in an error message: its JSON, cut short.
std::string excerpt(const Json& value);

}  // namespace dormouse
