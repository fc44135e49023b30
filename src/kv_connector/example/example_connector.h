// ExampleConnector: the shortest correct connector of this tree. Full blocks of prompts lie in
// files of a folder (extra config `shared_storage_path`) that several engines may share.
//
// A block is saved when its request ends, at the start of the next step, and loaded layer by layer
// by the step that first computes a request with the same beginning. The cache is touched only
// while a step runs, so that nothing is in flight when the mapping goes.
#pragma once

#include "dormouse/kv_connector.h"

namespace dormouse {

KvConnectorClass example_connector_class();

}  // namespace dormouse
