#include "testing/fault_plan.h"
