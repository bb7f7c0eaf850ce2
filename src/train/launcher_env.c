/* launcher_env.c: reads the environment variables of multi-process launchers. */
#include "public_names.h"

#include <krait/train.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "status.h"

typedef struct launcher {
  const char *rank, *n_ranks, *local_rank, *n_local;
} launcher;
static const launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}};
enum { MOST_RANKS = 4096, USUAL_PORT = 29500 };

static int32_t whole(const char *name, int most, int32_t *value) {
  const char *text = kr_env_foreign(name);
  char *end = NULL;
  const long number = text ? strtol(text, &end, 10) : -1;
  KR_CHECK(text && end != text && !*end && number >= 0 && number <= most, KRAIT_ERR_ARGUMENT,
           "environment variable %s is '%s', must be a number from 0 to %d", name, text ? text : "not set", most);
  *value = (int32_t)number;
  return KRAIT_OK;
}

int32_t krait_train_launcher_read(krait_train_launcher *place) {
  KR_CHECK(place && place->size == sizeof *place, KRAIT_ERR_STRUCT_SIZE, "krait_train_launcher_read: size must be %zu",
           sizeof *place);
  *place = (krait_train_launcher){.size = sizeof *place, .n_ranks = 1};
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
    const launcher *l = &launchers[i];
    const char *host = kr_env_foreign("MASTER_ADDR");
    int32_t port = USUAL_PORT;
    if (!kr_env_foreign(l->rank) || !kr_env_foreign(l->n_ranks)) continue;
    KR_TRY(whole(l->n_ranks, MOST_RANKS, &place->n_ranks));
    KR_TRY(whole(l->rank, MOST_RANKS, &place->rank));
    if (kr_env_foreign(l->local_rank)) KR_TRY(whole(l->local_rank, MOST_RANKS, &place->local_rank));
    if (kr_env_foreign(l->n_local)) KR_TRY(whole(l->n_local, MOST_RANKS, &place->n_local));
    if (kr_env_foreign("MASTER_PORT")) KR_TRY(whole("MASTER_PORT", 65534, &port));
    KR_CHECK(place->n_ranks > 0 && place->rank < place->n_ranks, KRAIT_ERR_ARGUMENT,
             "environment variable %s is %d, must be below %s, which is %d", l->rank, place->rank, l->n_ranks,
             place->n_ranks);
    if (kr_env_foreign("TORCHELASTIC_RUN_ID")) port++; /* torchrun itself listens on the port that it announces */
    const int n = snprintf(place->meet, sizeof place->meet, "%s:%d", host && *host ? host : "127.0.0.1", port);
    KR_CHECK(n > 0 && (size_t)n < sizeof place->meet, KRAIT_ERR_ARGUMENT,
             "environment variable MASTER_ADDR is too long for a host name");
    return KRAIT_OK;
  }
  return KRAIT_OK;
}
