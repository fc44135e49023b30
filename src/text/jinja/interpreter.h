// Renders a parsed template.
#pragma once

#include <ctime>

#include "dormouse/result.h"
#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace dormouse::text::jinja {

// `variables` are what the template sees, at most Value::kMaxDepth deep; `now` is for strftime_now.
// Errors: kInvalidArgument with the line, also for raise_exception; kUnsupported for names outside
// the subset; kResourceExhausted beyond the limits in budget.h.
Result<MarkedString> render(const Body& body, const Map& variables, std::time_t now);

}  // namespace dormouse::text::jinja
