// What the two legs of a request say, and how one is sent.
//
// Threads: any; all functions are pure but `send_leg`.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/json.h"
#include "router/cancellation.h"
#include "server/http_client.h"

namespace dormouse::router {

// "Bearer KEY", or nothing without a key.
server::HeaderList authorization(std::string_view api_key);

// The id of both legs. Never the client's alone: two clients may send the same one, and what is
// kept by it belongs to one request.
std::string make_request_id(std::string_view client_id);

// The requests of several prompts are computed where they are decoded: a transfer moves one.
bool has_several_prompts(const Json& request);

// The client's request, cut down to its first token, its KV kept for a pull.
std::string prefill_body(const Json& request);
// The client's request, with what the prefill leg answered as it is.
std::string decode_body(const Json& request, const Json& kv_transfer_params);
// What a prefill leg answered, null if it kept nothing.
Json kv_transfer_params_of(std::string_view answer);

bool is_event_stream(const server::HttpResponse& response);

struct Leg {
  std::string_view path;
  std::string_view body;
  std::string_view request_id;
  std::string_view api_key;
  // For all of the answer; where it may be long, for its head, and then without a byte. 0: none.
  std::chrono::milliseconds timeout{0};
  bool may_be_long = false;
};

// Sends one leg and reads its answer; `cancellation` ends it at once. kResourceExhausted for
// more than 64 MiB that are no stream of events.
Result<server::HttpResponse> send_leg(const server::Address& address, const Leg& leg,
                                      Cancellation& cancellation,
                                      const server::HttpClient::HeadSink& head,
                                      const server::HttpClient::BodySink& body);

}  // namespace dormouse::router
