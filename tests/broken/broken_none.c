/* SPDX-License-Identifier: Apache-2.0 */
/* The simple plugin as it is: a sound foreign plugin passes every rule. */
#include "simple_net.h"
