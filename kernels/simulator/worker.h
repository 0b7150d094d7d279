// What a simulated run knows of each worker and each event, and where it is written.
#pragma once

#include <cstdint>

namespace hpmoe {

// A queue of a rank.
struct Worker {
  int32_t place, end;        // in the image's queues
  int32_t num_waits_met = 0;  // of the task at place
  double came = 0;            // to the task at place
  double looked = 0;          // until when it has looked at the waits met so far
  double began = 0;           // the body of that task, to whole nanoseconds
  int64_t awaited = -1;       // the first event of the task at place that has not counted enough, as far as is known
  int32_t thread = -1;        // of a host, that runs a task of it
  double early = 0;           // bytes of that task's weight that it has read meanwhile
  bool is_reading = false;    // more of them
  bool was_woken = false;     // since it began to
  bool has_slept = false;
  double asleep_since = 0;
  int32_t next_asleep = -1;  // worker that waits for the same event
  int64_t released_by = -1;  // the source of the signal that ended its last sleep
};

// Workers that wait for an event, in the order in which they came; each knows the next.
struct Asleep {
  int32_t first = -1, last = -1;
};

// That an event has counted enough.
struct Met {
  double time = -1;
  int64_t source = -1;  // the last signal's, see Worker
};

// What a run is written into; see simulate.h.
struct Results {
  double* times;
  int32_t* released_by;
  double *missed, *totals, *served, *moved, *busy;
};

}  // namespace hpmoe
