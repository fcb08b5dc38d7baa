/* An NCCL as Python loads it: for itself alone, so that the process has none of its symbols. */
#include "log.h"

int ncclGetVersion(int *out) {
  *out = 22809;
  return 0;
}

void ncclDebugLog(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list values;
  (void)flags, (void)file, (void)line;
  va_start(values, format);
  print_log(level, format, values);
  va_end(values);
}
