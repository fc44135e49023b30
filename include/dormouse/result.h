// Errors are values: every operation that can fail returns Result<T> or Status, and none throws.
//
// Programmer errors (broken preconditions) stop the process instead, with a message.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace dormouse {

enum class ErrorCode {
  kInvalidArgument,     // the caller's input is wrong; nothing changed
  kNotFound,            // no such model, request or tag
  kFailedPrecondition,  // valid, but not in this state (HTTP 409)
  kCancelled,           // overtaken by a wake-up or a shutdown
  kUnsupported,         // known, and refused
  kResourceExhausted,   // not enough memory, device or host (HTTP 507)
  kUnavailable,         // asleep, loading, draining: try again later (HTTP 503)
  kDeadlineExceeded,
  kDataLoss,        // a file or a peer's bytes are damaged
  kTransferFailed,  // KV that another engine holds could not be had (HTTP 502)
  kInternal,
};

// A message says what failed, why, and what to do next. `param` names the offending field, if
// there is one.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string param = {};
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string message,
                                                std::string param = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(param)});
}

// The lower-case name of a code, as it stands in replies and logs: "invalid_argument".
std::string_view to_string(ErrorCode code);

// Of several failures keeps the first.
inline void keep_first(Status& first, Status next) {
  if (first && !next)
    first = std::move(next);
}

}  // namespace dormouse
