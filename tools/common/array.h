/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by one: a pointer, owned, and a count. Zeroed is empty. */
#ifndef GANTRY_TOOLS_ARRAY_H
#define GANTRY_TOOLS_ARRAY_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* `array`: where the pointer is. Its room is the next power of two from the count on, so it need not be stored. */
static inline void *array_add(void *array, size_t *n, size_t size)
{
	void *p;

	memcpy(&p, array, sizeof(p));
	if (!(*n & (*n - 1))) {
		p = realloc(p, (*n ? 2 * *n : 1) * size);
		if (!p)
			return NULL;
		memcpy(array, &p, sizeof(p));
	}
	return memset((char *)p + (*n)++ * size, 0, size);
}
/* One more element, zeroed; NULL: no memory, and nothing has changed. */
#define ARRAY_ADD(array, n) array_add(&(array), &(n), sizeof(*(array)))

#endif
