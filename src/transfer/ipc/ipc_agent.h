// Reads a peer's memory on the same host by mapping its blocks, read-only.
//
// A mapping pins the pages whatever their owner does, and nothing but the peer can end it: so the
// owner waits for its peers to let go, and asks the system whether they have.
#pragma once

#include <memory>

#include "device/vmm_driver.h"
#include "transfer/transfer_agent.h"

namespace dormouse {

// Imports are mapped by `driver`, which outlives the agent and all that it made. A large read is
// copied by up to `threads` threads, the caller's among them.
std::unique_ptr<TransferAgent> make_ipc_agent(VmmDriver& driver, unsigned threads);

}  // namespace dormouse
