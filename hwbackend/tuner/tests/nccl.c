/* An NCCL as Python loads it: for itself alone, so that the process has none of its symbols. */
#include <stdarg.h>
#include <stdio.h>

int ncclGetVersion(int *out) {
  *out = 22809;
  return 0;
}

void ncclDebugLog(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list values;
  (void)flags, (void)file, (void)line;
  fprintf(stderr, "log %d ", level);
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  fputc('\n', stderr);
}
