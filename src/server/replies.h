// Replies that every route shares: JSON, and errors in OpenAI's shape.
#pragma once

#include "base/json.h"
#include "dormouse/result.h"
#include "server/http.h"

namespace dormouse::server {

// Who reads the error. A user of the API is told what is wrong with the request; an operator is
// told everything.
enum class Audience { kUser, kOperator };

int http_status(ErrorCode code, Audience audience);

HttpResponse json_response(const Json& body, int status = 200);

// {"error":{"message","type","param","code"}}, the code being the HTTP status.
Json error_body(int status, std::string_view message, std::string_view param);
HttpResponse error_response(int status, std::string_view message, std::string_view param = {});
HttpResponse error_response(const Error& error, Audience audience);
// What a user may read of an error: internal ones are told in general terms.
std::string_view public_message(const Error& error);

}  // namespace dormouse::server
