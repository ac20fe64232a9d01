/* libgantry.so: the public face of the core. Communicator and receive pipeline will be exported here. */
#include "gantry/gantry.h"

__attribute__((visibility("default"))) const char *gantry_version(void)
{
	return GANTRY_VERSION " (" GANTRY_COMMIT ")";
}
