// The check of what orders tasks: events, and the waits and signals about them. Each tells what is wrong, or NULL.
#pragma once

#include "core/image.h"

namespace hpmoe {

const char* check_events(const Image& image);

// The waits and signals of a template, whose op and tables exist.
const char* check_events_of_template(const Image& image, const TaskTemplate& task_template);

// Whether every counter that they lead a task to exists.
const char* check_events_of_task(const Image& image, const Op& op, const Task& task);

}  // namespace hpmoe
