#include "server/replies.h"

namespace dormouse::server {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 409:
      return "ConflictError";
    case 500:
      return "InternalServerError";
    case 501:
      return "NotImplementedError";
    case 502:
      return "BadGatewayError";
    case 503:
      return "ServiceUnavailableError";
    case 504:
      return "TimeoutError";
    case 507:
      return "InsufficientResourcesError";
  }
  return "BadRequestError";
}

}  // namespace

int http_status(ErrorCode code, Audience audience) {
  const bool user = audience == Audience::kUser;
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kCancelled:
      return 409;
    case ErrorCode::kUnsupported:
      return user ? 400 : 501;
    case ErrorCode::kResourceExhausted:
      return user ? 400 : 507;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
    case ErrorCode::kTransferFailed:
      return 502;
    case ErrorCode::kDataLoss:
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

HttpResponse json_response(const Json& body, int status) {
  return {.status = status, .body = body.dump()};
}

Json error_body(int status, std::string_view message, std::string_view param) {
  Json error;
  error.add("message", message);
  error.add("type", error_type(status));
  error.add("param", param.empty() ? Json() : Json(param));
  error.add("code", status);
  return Json().add("error", std::move(error));
}

HttpResponse error_response(int status, std::string_view message, std::string_view param) {
  HttpResponse response = json_response(error_body(status, message, param), status);
  if (status == 503)
    response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse error_response(const Error& error, Audience audience) {
  const std::string_view message =
      audience == Audience::kUser ? public_message(error) : std::string_view(error.message);
  return error_response(http_status(error.code, audience), message, error.param);
}

std::string_view public_message(const Error& error) {
  if (error.code == ErrorCode::kInternal || error.code == ErrorCode::kDataLoss)
    return "Internal server error";
  return error.message;
}

}  // namespace dormouse::server
