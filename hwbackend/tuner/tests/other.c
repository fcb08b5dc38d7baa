/* Another tuner, of one interface that INTERFACE says at compile time: it takes tree/simple on 3 channels for all calls. */
#include <stddef.h>
#include <stdint.h>

#if INTERFACE >= 5
static int init(void **context, uint64_t id, size_t ranks, size_t nodes, void *log, void *domains, void *constants) {
  (void)id, (void)ranks, (void)nodes, (void)log, (void)domains, (void)constants;
#else
static int init(size_t ranks, size_t nodes, void *log, void **context) {
  (void)ranks, (void)nodes, (void)log;
#endif
  static int mine = 77;
  *context = &mine;
  return 0;
}

#if INTERFACE == 2
static int get(void *context, int f, size_t n, int collnet, int nvls, int ops, int *algorithm, int *protocol, int *channels) {
  (void)f, (void)n, (void)collnet, (void)nvls, (void)ops;
  *algorithm = 0, *protocol = 2;
#elif INTERFACE == 3
static int get(void *context, int f, size_t n, int ops, float **costs, int algorithms, int protocols, int *channels) {
  (void)f, (void)n, (void)ops, (void)algorithms, (void)protocols;
  ((float *)costs)[2] = 0;
#else
static int get(void *context, int f, size_t n, int ops, float **costs, int algorithms, int protocols, int reg, int *channels) {
  (void)f, (void)n, (void)ops, (void)algorithms, (void)protocols, (void)reg;
  ((float *)costs)[2] = 0;
#endif
  *channels = *(int *)context == 77 ? 3 : -1;
  return 0;
}

static int end(void *context) { return *(int *)context == 77 ? 0 : 1; }
static int chunk(void *context, int f, size_t n, int algorithm, int protocol, int channels, size_t *bytes) {
  (void)context, (void)f, (void)n, (void)algorithm, (void)protocol, (void)channels;
  *bytes = 12345;
  return 0;
}

#define NAMED(v) ncclTunerPlugin_v##v
#define NAME(v) NAMED(v)
const struct { const char *name; void *init, *get, *end, *chunk; } NAME(INTERFACE) = {
    "other", (void *)init, (void *)get, (void *)end, (void *)chunk};
