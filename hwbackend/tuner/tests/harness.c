/* Calls a tuner plugin as NCCL does, through one of its interfaces: layouts from NCCL's documentation of 2.21 to 2.30.
 *
 *   harness LIBRARY INTERFACE RANKS NODES CALLS < calls
 *
 * A call is a line `collective bytes pipe_ops registered closed`, where `closed` is the index of a cell that NCCL cannot
 * do, or -1. Each is asked CALLS times; its answer is `algorithm protocol channels cells_changed nanoseconds`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "log.h"

#define ALGORITHMS 7
#define PROTOCOLS 3

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef int (*init2_t)(size_t, size_t, logger_t, void **);
typedef int (*init5_t)(void **, uint64_t, size_t, size_t, logger_t, void *, void *);
typedef int (*get2_t)(void *, int, size_t, int, int, int, int *, int *, int *);
typedef int (*get3_t)(void *, int, size_t, int, float **, int, int, int *);
typedef int (*get4_t)(void *, int, size_t, int, float **, int, int, int, int *);
typedef int (*end_t)(void *);
typedef int (*chunk_t)(void *, int, size_t, int, int, int, size_t *);
struct plugin {
  const char *name;
  void *init, *get;
  end_t end;
  chunk_t chunk; /* v6 alone */
};

/* The version that this NCCL has; -1 for one that does not say. */
int version = -1;
int ncclGetVersion(int *out) {
  *out = version;
  return version < 0 ? 1 : 0;
}

static void own_logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list values;
  (void)flags, (void)file, (void)line;
  va_start(values, format);
  print_log(level, format, values);
  va_end(values);
}

static logger_t logger = own_logger;
/* What costs of a ring are multiplied by. */
static float ring = 1;
/* Whether switches of the network reduce, as v2 is told. */
static int collnet;

static struct plugin *plugin;
static void *context;
static int interface;

/* What NCCL makes of an answer: the open cell that costs least. */
static void ask(int collective, size_t bytes, int ops, int registered, int closed, int *out) {
  float table[ALGORITHMS][PROTOCOLS];
  float *costs = &table[0][0];
  int cell, algorithm = -1, protocol = -1, channels = 0, changed = 0;
  for (cell = 0; cell < ALGORITHMS * PROTOCOLS; cell++) costs[cell] = (10.0f + cell) * (cell / PROTOCOLS == 1 ? ring : 1);
  if (closed >= 0) costs[closed] = closed % 2 ? -1024.0f : -1.0f;
  if (interface == 2) {
    ((get2_t)plugin->get)(context, collective, bytes, collnet, closed != 14, ops, &algorithm, &protocol, &channels);
  } else if (interface == 3) {
    ((get3_t)plugin->get)(context, collective, bytes, ops, (float **)table, ALGORITHMS, PROTOCOLS, &channels);
  } else {
    ((get4_t)plugin->get)(context, collective, bytes, ops, (float **)table, ALGORITHMS, PROTOCOLS, registered, &channels);
  }
  if (interface > 2) {
    int best = -1;
    for (cell = 0; cell < ALGORITHMS * PROTOCOLS; cell++) {
      if (costs[cell] >= 0 && (best < 0 || costs[cell] < costs[best])) best = cell;
      changed += costs[cell] != (cell == closed ? (closed % 2 ? -1024.0f : -1.0f) : (10.0f + cell) * (cell / PROTOCOLS == 1 ? ring : 1));
    }
    algorithm = best / PROTOCOLS;
    protocol = best % PROTOCOLS;
  }
  out[0] = algorithm, out[1] = protocol, out[2] = channels, out[3] = changed;
}

/* A second thread that asks all the time: answers of one do not depend on the other. */
static volatile int stop;
static void *other(void *unused) {
  int out[4];
  (void)unused;
  while (!stop) ask(4, 1 << 20, 1, 0, -1, out);
  return NULL;
}

int main(int count, char **words) {
  char symbol[32];
  int collective, ops, registered, closed, calls, out[4];
  unsigned long long bytes;
  size_t chunk = 4096;
  pthread_t thread;
  if (count != 6) return 2;
  if (getenv("HARNESS_NCCL")) version = atoi(getenv("HARNESS_NCCL"));
  void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
  collnet = getenv("HARNESS_COLLNET") != NULL;
  if (getenv("HARNESS_RING")) ring = atof(getenv("HARNESS_RING"));
  /* An NCCL that the process cannot see. */
  if (getenv("HARNESS_LIBRARY")) logger = (logger_t)dlsym(dlopen(getenv("HARNESS_LIBRARY"), RTLD_NOW | RTLD_LOCAL), "ncclDebugLog");
  interface = atoi(words[2]);
  snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", interface);
  plugin = dlsym(library, symbol);
  if (!plugin || strcmp(plugin->name, "collcast")) return 4;
  size_t ranks = atoi(words[3]), nodes = atoi(words[4]);
  /* ncclNvlDomainInfo_v5_t: domains, the fewest and the most ranks of one. */
  int domains[3] = {0, 0, 0};
  const char *told = getenv("HARNESS_DOMAINS");
  if (told) sscanf(told, "%d,%d,%d", &domains[0], &domains[1], &domains[2]);
  int code = interface < 5 ? ((init2_t)plugin->init)(ranks, nodes, logger, &context)
                           : ((init5_t)plugin->init)(&context, 0xc0ffee, ranks, nodes, logger, told ? domains : NULL, NULL);
  if (code) return 5;
  calls = atoi(words[5]);
  pthread_create(&thread, NULL, other, NULL);
  while (scanf("%d %llu %d %d %d", &collective, &bytes, &ops, &registered, &closed) == 5) {
    struct timespec from, to;
    int call;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (call = 0; call < calls; call++) ask(collective, bytes, ops, registered, closed, out);
    clock_gettime(CLOCK_MONOTONIC, &to);
    double ns = ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / calls;
    printf("%d %d %d %d %.0f\n", out[0], out[1], out[2], out[3], ns);
  }
  stop = 1;
  pthread_join(thread, NULL);
  if (interface == 6 && plugin->chunk(context, 4, 1 << 20, 1, 2, 8, &chunk)) return 6;
  printf("chunk %zu\n", chunk);
  return plugin->end(context);
}
