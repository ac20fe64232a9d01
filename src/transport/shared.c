/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shared.h"

#include <pthread.h>
#include <string.h>

#include "base/hmac.h"

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct gantry_list all = {&all, &all};

gantry_result gantry_shared_init(struct gantry_shared *s, void (*destroy)(struct gantry_shared *s))
{
	gantry_result r = gantry_random_bytes(&s->token, sizeof(s->token));

	if (r != GANTRY_OK)
		return r;
	s->refs = 1;
	s->asked = s->found = 0;
	s->destroy = destroy;
	pthread_mutex_lock(&mu);
	gantry_list_append(&all, &s->node);
	pthread_mutex_unlock(&mu);
	return GANTRY_OK;
}

gantry_result gantry_shared_find(const struct gantry_token *token, void (*destroy)(struct gantry_shared *s), int wait,
				 struct gantry_shared **ret_shared)
{
	gantry_result r = GANTRY_ERR_PEER_LOST;

	pthread_mutex_lock(&mu);
	gantry_list_each (pos, &all) {
		struct gantry_shared *s = gantry_container(pos, struct gantry_shared, node);

		if (s->destroy != destroy || memcmp(&s->token, token, sizeof(*token)) != 0)
			continue;
		r = wait && !s->asked ? GANTRY_AGAIN : GANTRY_OK;
		if (r == GANTRY_OK) {
			s->refs++;
			s->found = 1;
			*ret_shared = s;
		}
		break;
	}
	pthread_mutex_unlock(&mu);
	return r;
}

gantry_result gantry_shared_found(struct gantry_shared *s)
{
	gantry_result r;

	pthread_mutex_lock(&mu);
	s->asked = 1;
	r = s->found ? GANTRY_OK : GANTRY_AGAIN;
	pthread_mutex_unlock(&mu);
	return r;
}

void gantry_shared_put(struct gantry_shared *s)
{
	int last;

	if (!s)
		return;
	pthread_mutex_lock(&mu);
	last = --s->refs == 0;
	if (last)
		gantry_list_remove(&s->node);
	pthread_mutex_unlock(&mu);
	if (last)
		s->destroy(s);
}
