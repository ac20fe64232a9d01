/* Caught by size-mismatch. */
#define SIMPLE_OVERRUN
#include "simple_net.h"
