#include "kv_connector/built_in.h"

namespace dormouse {

std::vector<KvConnectorClass> built_in_classes() {
  return {};
}

}  // namespace dormouse
