// What the operating system says about memory, for tests of any layer.
#pragma once

#include "device/host/host_memory.h"  // IWYU pragma: export
