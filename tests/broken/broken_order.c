/* Caught by ordering. */
#define SIMPLE_OVERTAKE
#include "simple_net.h"
