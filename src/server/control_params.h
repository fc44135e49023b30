// The options of a control call, from its query and from its JSON body alike.
//
// Each may be given in either place, as its own type or as a string ("1", "true"). Given twice with
// different values it is refused. null is absent.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dormouse/result.h"
#include "server/http.h"

namespace dormouse::server {

class ControlParams {
 public:
  // Errors: kInvalidArgument if the query or a body that is not empty cannot be read.
  static Result<ControlParams> from(const HttpRequest& request);
  // The same from an object alone.
  explicit ControlParams(Json body) : body_(std::move(body)) {}

  Result<std::optional<std::int64_t>> integer(std::string_view name, std::int64_t min,
                                              std::int64_t max);
  Result<std::optional<bool>> boolean(std::string_view name);
  Result<std::optional<std::string>> string(std::string_view name);
  // Repeated in the query, a list (or one string) in the body; without duplicates.
  Result<std::optional<std::vector<std::string>>> strings(std::string_view name);
  // A member of the body; null if it is absent or null.
  const Json* find(std::string_view name);

  // Whether it is given; does not make it a known name.
  bool has(std::string_view name) const;
  // Fails for a name that nothing above was called for, but nearly: a slip of the pen must not do
  // otherwise than meant. Other names are ignored.
  Status refuse_slips() const;

 private:
  // The texts of every place that gives this name; numbers and booleans as they are written.
  Result<std::vector<std::string>> scalars(std::string_view name);

  std::vector<std::pair<std::string, std::string>> query_;
  Json body_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace dormouse::server
