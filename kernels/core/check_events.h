// Checks events, and the waits and signals that name them. Each function returns the fault, or NULL.
#pragma once

#include "core/image.h"

namespace hpmoe {

const char* check_events(const Image& image);

// Checks the waits and signals of a template whose op and tables are valid.
const char* check_events_of_template(const Image& image, const TaskTemplate& task_template);

// Checks that every counter that a task's waits and signals select exists.
const char* check_events_of_task(const Image& image, const Op& op, const Task& task);

}  // namespace hpmoe
