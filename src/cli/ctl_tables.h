// What ctl prints of a server's answers, and what serve's banner shares with it.
#pragma once

#include <string>

#include "base/json.h"

namespace dormouse::cli {

// The member as text, or as JSON if it is none; empty if it is absent or null.
std::string text_of(const Json& object, std::string_view name);

// Of GET /status: an engine's, or a router's.
std::string status_table(const Json& status);
bool is_router(const Json& status);  // it has a list of instances

// Of the answer to a control call.
std::string transition_table(const Json& reply);

// "IpcConnector, kv_both at 127.0.0.1:14579; peers 127.0.0.1:14580"
std::string transfer_text(const Json& kv_transfer);

// What a server advises, in the words of this command: "dormouse ctl wake" for "POST /wake_up".
std::string in_ctl_words(std::string text);

}  // namespace dormouse::cli
