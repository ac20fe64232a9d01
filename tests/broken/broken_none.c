/* SPDX-License-Identifier: Apache-2.0 */
/* The simple plugin as it is: a sound foreign plugin passes every rule. */
#include "simple_net.h"

#include "simple_coll.h"
#include "simple_gin.h"
#include "simple_profiler.h"
#include "simple_tuner.h"
