// Where this user's engines meet on this host: a directory that belongs to this user alone, and the
// token that lies in it.
//
// Errors: kFailedPrecondition if others could write there.
#pragma once

#include <string>

#include "dormouse/result.h"

namespace dormouse::net {

struct MeetingPlace {
  std::string directory;
  std::string token;
};

// Both are made if need be, the token once. Empty `directory`: $XDG_RUNTIME_DIR or /tmp, and a name
// of this user.
Result<MeetingPlace> open_meeting_place(const std::string& directory);

}  // namespace dormouse::net
